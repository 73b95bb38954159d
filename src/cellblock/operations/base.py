"""The declaration of an operation: its name, its fields, its answer, its route, and whether it can be repeated."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import Field, field, fields
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

from cellblock.wire.record import record

PROTOCOL = 7
"""The version of all operations. A client and a daemon of different versions do not talk to each other."""

MAX_REQUEST = 64 * 1024 * 1024
"""Bytes of the body of a request: code, or a part of a file."""

OPERATIONS: dict[str, type[Request[Any]]] = {}
"""Every operation, by its name. They are all there once `cellblock.operations` is imported."""


class Limits:
    """Constraints on a field in HTTP: ``Annotated[int, Limits(ge=1)]``. The session validates the daemon's requests.

    Attributes:
        choices: The permitted texts, if they are few.
        bounds: Bounds in pydantic's form: ``ge``, ``le``, ``lt``, ``min_length``, ``max_length``.
    """

    def __init__(self, *choices: str, **bounds: int) -> None:
        self.choices = choices
        self.bounds = bounds


@record
class Route:
    """The HTTP route of an operation, from which the gateway's routes and its clients' calls are made.

    Fields in the path are named there. Other fields are in the query for GET and DELETE, and in the body for POST.

    Attributes:
        method: ``GET``, ``POST`` or ``DELETE``.
        path: The path, in FastAPI's form.
        summary: A short description.
        scope: The required scope.
        within: The field of the JSON object that contains the operation's answer; empty if there is no such object.
        text: The field that becomes the body of the request.
        text_limits: The constraints on that field.
        text_default: The default of that field; None: it is required.
        attended: Whether the operation is cancelled when its client leaves. Its answer can be large.
        without: Fields that are unavailable in HTTP.
        others: A verb such as ``make`` for an operation that affects other sessions: tokens for one session cannot use it.
            Else empty.
    """

    method: str
    path: str
    summary: str
    scope: str = "run"
    within: str = ""
    text: str = ""
    text_limits: Limits = Limits()
    text_default: str | None = None
    attended: bool = False
    without: tuple[str, ...] = ()
    others: str = ""

    @property
    def places(self) -> list[str]:
        """The fields in the path."""
        return [place.partition(":")[0] for place in re.findall("{(.+?)}", self.path)]

    def sent(self, kind: type[Request[Any]]) -> list[Field[Any]]:
        """Return the fields of an operation that are in the query or in the body."""
        left_out = {*self.places, *self.without}
        return [one for one in fields(kind) if one.name not in left_out]  # type: ignore[arg-type]  # it is a dataclass


AnswerT = TypeVar("AnswerT")
"""For functions that take a request, and return its answer."""

_AnswerT_co = TypeVar("_AnswerT_co", covariant=True)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Request(Generic[_AnswerT_co]):
    """One operation with its arguments: the base class of all operations.

    An operation is a subclass of ``Request[ANSWER]``, which `record` makes a frozen dataclass. ANSWER is the type of the
    client's answer, or of one part if the answer has many. Types of `model` are named in a string, so that a client loads
    only the types that it needs.

    Attributes:
        op: The operation's name, on the daemon's socket and in errors.
        repeatable: Whether the operation is idempotent, so that a request with an unknown outcome can be repeated.
        route: The HTTP route, or None.
        join: Merges the answers of a cluster's nodes, for operations on all sessions. None for operations on one session,
            which are sent to its node.
    """

    __class_getitem__: ClassVar[Any] = classmethod(types.GenericAlias)  # faster than typing, and all clients load them
    op: ClassVar[str]
    repeatable: ClassVar[bool]
    route: ClassVar[Route | None]
    join: ClassVar[Callable[[Sequence[Any]], Any] | None]

    def __init_subclass__(
        cls,
        *,
        op: str,
        repeatable: bool = False,
        route: Route | None = None,
        join: Callable[[Sequence[Any]], Any] | None = None,
    ) -> None:
        """Declare an operation.

        Raises:
            TypeError: The name is already used, or the class has no docstring for the documentation.
        """
        super().__init_subclass__()
        if not cls.__doc__ and sys.flags.optimize < 2:
            raise TypeError(f"the operation {op!r} needs a docstring: its documentation is made from it")
        if op in OPERATIONS:
            raise TypeError(f"two operations have the name {op!r}: {OPERATIONS[op].__name__} and {cls.__name__}")
        cls.op, cls.repeatable, cls.route = op, repeatable, route
        cls.join = None if join is None else staticmethod(join)  # not a method
        OPERATIONS[op] = record(cls)

    @property
    def may_repeat(self) -> bool:
        """Whether this request can be repeated: `repeatable`, unless that depends on its arguments."""
        return self.repeatable


def in_order_of(field: str) -> Callable[[Sequence[list[dict[str, Any]]]], list[dict[str, Any]]]:
    """Return a function that merges lists of several nodes, sorted by a field of their items (`Request.join`)."""

    def joined(answers: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        return sorted((item for answer in answers for item in answer), key=lambda item: item[field])

    return joined


def one_after_the_other(answers: Sequence[list[Any]]) -> list[Any]:
    """Concatenate lists of several nodes (`Request.join`)."""
    return [item for answer in answers for item in answer]


def all_of_them(answers: Sequence[bool]) -> bool:
    """Return whether every node has succeeded (`Request.join`)."""
    return all(answers)
