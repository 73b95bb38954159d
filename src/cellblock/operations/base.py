"""What the declaration of an operation says: its name, its fields, its answer, and whether it can be repeated."""

from __future__ import annotations

import types
from dataclasses import field
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

from cellblock.wire.record import record

PROTOCOL = 5
"""The version of all operations. A client and a daemon of different versions do not talk to each other."""

MAX_REQUEST = 64 * 1024 * 1024
"""Bytes of the body of a request: code, or a part of a file."""

OPERATIONS: dict[str, type[Request[Any]]] = {}
"""Every operation, by its name. They are all there once `cellblock.operations` is imported."""


AnswerT = TypeVar("AnswerT")
"""For functions that take a request, and return its answer."""

_AnswerT_co = TypeVar("_AnswerT_co", covariant=True)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Request(Generic[_AnswerT_co]):
    """One operation with its arguments: the base of all operations.

    An operation is a subclass of ``Request[ANSWER]``, which `record` makes a frozen dataclass. ANSWER is the type of the
    answer as a client gets it; if the answer has many parts, that of a part. Types of `model` are named in a text, so that a
    client loads only those that it needs.

    Attributes:
        op: Its name, on the daemon's socket and in errors.
        repeatable: Whether it can be repeated if it is not known whether it was carried out: twice is the same as once.
    """

    __class_getitem__: ClassVar[Any] = classmethod(types.GenericAlias)  # quicker than typing, and every client loads them all
    op: ClassVar[str]
    repeatable: ClassVar[bool]

    def __init_subclass__(cls, *, op: str, repeatable: bool = False) -> None:
        """Declare an operation.

        Raises:
            TypeError: There is one of this name.
        """
        super().__init_subclass__()
        if op in OPERATIONS:
            raise TypeError(f"two operations have the name {op!r}: {OPERATIONS[op].__name__} and {cls.__name__}")
        cls.op, cls.repeatable = op, repeatable
        OPERATIONS[op] = record(cls)

    @property
    def may_repeat(self) -> bool:
        """Whether this request can be repeated: `repeatable`, unless that depends on its arguments."""
        return self.repeatable
