"""The description of a saved session's pickles: in the file, and to and from workers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from cellblock.errors import ProtocolError
from cellblock.model.saving import LeftOut
from cellblock.wire.codec import decoder, encoder
from cellblock.wire.record import record

FORMAT = 1
"""The version of the file's format, and of the names in the pickles."""

MAX_STATE = 1024 * 1024
"""Bytes of the largest state or manifest, as JSON."""

DATA, END = b"+", b"."
"""The first byte of the worker's messages: bytes of the pickles, or the state, which is the last."""

_T = TypeVar("_T")


@record
class Group:
    """Variables in one pickle, because their values share objects.

    Attributes:
        names: The variables; empty if the pickle must not be used.
        size: Its size in bytes. The pickles follow each other.
        code: Whether it contains functions or classes, which only the same version of Python can read.
    """

    names: tuple[str, ...]
    size: int
    code: bool


@record
class State:
    """The state of a session, except its pickles.

    Attributes:
        groups: The pickles, in order.
        imports: Variables that are modules, with the modules' names.
        modules: More modules that the code has imported.
        environment: Environment variables that the code has changed; None for a removed one.
        directory: The working directory.
        count: The number of the last cell.
        python: The version of Python, such as ``3.13``.
        libraries: Versions of the variables' libraries.
        left_out: Variables that could not be saved.
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
    """The worker's report after loading a session.

    Attributes:
        names: The variables.
        left_out: Variables that could not be loaded.
    """

    names: tuple[str, ...]
    left_out: tuple[LeftOut, ...]


@record
class Manifest:
    """The file's manifest.

    Attributes:
        format: As `FORMAT`.
        version: The version of cellblock that wrote it.
        created: Creation time (ISO 8601, UTC).
        state: The session's state.
    """

    format: int
    version: str
    created: str
    state: State


def write(value: object) -> bytes:
    """Encode a description as JSON."""
    convert = encoder(type(value))
    assert convert is not None
    return json.dumps(convert(value), ensure_ascii=True).encode()


def read(kind: type[_T], data: bytes) -> _T:
    """Decode and validate a description.

    Raises:
        ProtocolError: It is too large, or invalid.
    """
    if len(data) > MAX_STATE:
        raise ProtocolError(f"{len(data):,} bytes are over the limit of {MAX_STATE:,}")
    try:
        plain: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"it is not valid JSON: {str(error)[:200]}") from None
    value: _T = decoder(kind)(plain)
    return value
