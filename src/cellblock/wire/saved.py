"""What is told of a saved session beside its pickles: by the worker that saves it, in the file, and to the one that loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from cellblock.errors import ProtocolError
from cellblock.model.saving import LeftOut
from cellblock.wire.codec import decoder, encoder
from cellblock.wire.record import record

FORMAT = 1
"""The version of the file's format, and of what the pickles name."""

MAX_STATE = 1024 * 1024
"""Bytes of the largest state or manifest, as JSON."""

DATA, END = b"+", b"."
"""What the worker sends begins with one of these: bytes of the pickles; the state, which is the last."""

_T = TypeVar("_T")


@record
class Group:
    """Variables that are in one pickle, because their values share objects.

    Attributes:
        names: The variables; none if the pickle is not to be used.
        size: How many bytes it has. The pickles follow each other.
        code: Whether functions or classes are in it, which only the same version of Python can read.
    """

    names: tuple[str, ...]
    size: int
    code: bool


@record
class State:
    """What a session is, beside its pickles.

    Attributes:
        groups: The pickles, in order.
        imports: Variables that are modules, with the modules' names.
        modules: More modules that the code has imported.
        environment: Environment variables that the code has changed; None for one that it has removed.
        directory: The working directory.
        count: The number of the last cell.
        python: The version of Python, such as ``3.13``.
        libraries: Versions of libraries that the variables are of.
        left_out: What could not be kept.
    """

    groups: tuple[Group, ...]
    imports: Mapping[str, str]
    modules: tuple[str, ...]
    environment: Mapping[str, str | None]
    directory: str
    count: int
    python: str
    libraries: Mapping[str, str]
    left_out: tuple[LeftOut, ...]

    @property
    def names(self) -> list[str]:
        """The variables."""
        return [*self.imports, *(name for group in self.groups for name in group.names)]


@record
class Loaded:
    """What the worker tells when it has loaded a session.

    Attributes:
        names: The variables.
        left_out: What could not be brought back.
    """

    names: tuple[str, ...]
    left_out: tuple[LeftOut, ...]


@record
class Manifest:
    """What stands in the file.

    Attributes:
        format: As `FORMAT`.
        version: The version of cellblock that has written it.
        created: When (ISO 8601, UTC).
        state: The session's.
    """

    format: int
    version: str
    created: str
    state: State


def write(value: object) -> bytes:
    """Return one of these as JSON."""
    convert = encoder(type(value))
    assert convert is not None
    return json.dumps(convert(value), ensure_ascii=True).encode()


def read(kind: type[_T], data: bytes) -> _T:
    """Return one of these, checked.

    Raises:
        ProtocolError: It is too large, or not one.
    """
    if len(data) > MAX_STATE:
        raise ProtocolError(f"{len(data):,} bytes are over the limit of {MAX_STATE:,}")
    try:
        plain: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"it is not valid JSON: {str(error)[:200]}") from None
    value: _T = decoder(kind)(plain)
    return value
