"""The registry of the handlers of operations, filled by decorators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar

from cellblock.operations.base import Request
from cellblock.service.daemon.daemon_state import Server

_RequestT = TypeVar("_RequestT", bound=Request[Any])
_P = ParamSpec("_P")
_Handles: TypeAlias = Callable[Concatenate[Server, _RequestT, _P], Awaitable[Any]]


class Handler(NamedTuple):
    """The handler of an operation.

    Attributes:
        function: Called with the server and the request. It returns the operation's declared type, an iterator if parts are
            declared, or `Packed` data.
        with_body: Whether the function also gets the request's body.
    """

    function: Callable[..., Awaitable[Any]]
    with_body: bool


HANDLERS: dict[type[Request[Any]], Handler] = {}
"""The handler of each operation. They are all there once `answering` is imported."""


def answers(kind: type[_RequestT], *, with_body: bool = False) -> Callable[[_Handles[_RequestT, _P]], _Handles[_RequestT, _P]]:
    """Register a function as the handler of an operation.

    Args:
        kind: The operation.
        with_body: Whether its requests have a body, such as code, which the function also gets.

    Raises:
        TypeError: The operation already has a handler.
    """

    def enter(function: _Handles[_RequestT, _P]) -> _Handles[_RequestT, _P]:
        if kind in HANDLERS:
            raise TypeError(f"two functions answer {kind.op!r}: {HANDLERS[kind].function.__name__} and {function.__name__}")
        HANDLERS[kind] = Handler(function, with_body)
        return function

    return enter


def seconds(milliseconds: int) -> float | None:
    """Convert a time limit of a request to seconds; None for no limit."""
    return None if milliseconds < 0 else milliseconds / 1000
