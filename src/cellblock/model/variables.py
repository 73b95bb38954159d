"""Variables of a session, and their differences between two states."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from cellblock.errors import ProtocolError
from cellblock.model.plain import Plain

MAX_SURVEY = 1024 * 1024
"""Bytes of the largest survey: the variables of a session as JSON."""


@dataclass(frozen=True, slots=True)
class Variable(Plain):
    """A variable of a session.

    Attributes:
        name: Name.
        type: Name of its type, such as ``pandas.DataFrame``.
        size: Estimated size of its value in bytes; None if that would need code of the session.
        shape: Shape of an array or a frame, or length of a container.
        preview: A short description, made without calling methods that the session's code defined.
    """

    name: str
    type: str
    size: int | None = None
    shape: tuple[int, ...] | None = None
    preview: str = ""


@dataclass(frozen=True, slots=True)
class ChangedVariable:
    """A variable with another value than before.

    Attributes:
        before: The variable in the earlier state.
        after: The variable in the later state.
    """

    before: Variable
    after: Variable


@dataclass(frozen=True, slots=True)
class VariableChanges(Plain):
    """Differences between the variables of two states.

    Attributes:
        new: Variables only in the later state.
        changed: Variables with another or a modified value.
        deleted: Variables only in the earlier state.
        unknown: Variables that may have changed: their values cannot be compared, or not in time.
    """

    new: list[Variable] = field(default_factory=list)
    changed: list[ChangedVariable] = field(default_factory=list)
    deleted: list[Variable] = field(default_factory=list)
    unknown: list[Variable] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.deleted or self.unknown)


@dataclass(frozen=True, slots=True)
class Survey:
    """All variables of a session in one state.

    Attributes:
        variables: Variables by name.
        digests: Digests of their values; None for a value that cannot be compared.
        left_out: Number of variables above the limit of a survey.
    """

    variables: Mapping[str, Variable] = field(default_factory=dict)
    digests: Mapping[str, str | None] = field(default_factory=dict)
    left_out: int = 0


def diff_variables(before: Survey, after: Survey) -> VariableChanges:
    """Return the differences between two states. Both surveys must have digests."""
    changes = VariableChanges(
        new=[variable for name, variable in after.variables.items() if name not in before.variables],
        deleted=[variable for name, variable in before.variables.items() if name not in after.variables],
    )
    for name, now in after.variables.items():
        if (then := before.variables.get(name)) is None:
            continue
        old, new = before.digests.get(name), after.digests.get(name)
        if (then.type, then.shape) != (now.type, now.shape) or (old is not None and new is not None and old != new):
            changes.changed.append(ChangedVariable(then, now))
        elif old is None or new is None:
            changes.unknown.append(now)
    return changes


def read_survey(data: bytes) -> Survey:
    """Parse the survey that a worker sent.

    Raises:
        ProtocolError: It is invalid.
    """
    if len(data) > MAX_SURVEY:
        raise ProtocolError(f"a survey of {len(data):,} bytes is over the limit of {MAX_SURVEY:,}")
    try:
        told = json.loads(data)
        rows, left_out = told["variables"], told["left_out"]
        read = [
            (Variable(name, kind, size, None if shape is None else tuple(shape), preview), digest)
            for name, kind, size, shape, preview, digest in rows
        ]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProtocolError(f"the session sent a survey of its variables that is not valid: {str(error)[:200]}") from None
    if type(left_out) is not int or not all(_valid(variable, digest) for variable, digest in read):
        raise ProtocolError("the session sent a survey of its variables that is not valid: a field has another type")
    return Survey({one.name: one for one, _ in read}, {one.name: digest for one, digest in read}, left_out)


def _valid(variable: Variable, digest: object) -> bool:
    sizes = [*(variable.shape or ()), *([] if variable.size is None else [variable.size])]
    texts = [variable.name, variable.type, variable.preview, *([] if digest is None else [digest])]
    return all(type(size) is int for size in sizes) and all(type(text) is str for text in texts)
