"""The registry of the handlers of operations, filled by decorators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from cellblock.operations.base import Request
from cellblock.service.daemon.daemon_state import Server

_RequestT = TypeVar("_RequestT", bound=Request[Any])
_Plain: TypeAlias = Callable[[Server, _RequestT], Awaitable[Any]]
_WithBody: TypeAlias = Callable[[Server, _RequestT, bytes], Awaitable[Any]]


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


def answers(kind: type[_RequestT]) -> Callable[[_Plain[_RequestT]], _Plain[_RequestT]]:
    """Register a function as the handler of an operation.

    Raises:
        TypeError: The operation already has a handler.
    """

    def enter(function: _Plain[_RequestT]) -> _Plain[_RequestT]:
        _enter(kind, Handler(function, with_body=False))
        return function

    return enter


def answers_with_body(kind: type[_RequestT]) -> Callable[[_WithBody[_RequestT]], _WithBody[_RequestT]]:
    """Register the handler of an operation whose requests have a body, such as code; otherwise as `answers`."""

    def enter(function: _WithBody[_RequestT]) -> _WithBody[_RequestT]:
        _enter(kind, Handler(function, with_body=True))
        return function

    return enter


def _enter(kind: type[Request[Any]], handler: Handler) -> None:
    if kind in HANDLERS:
        raise TypeError(
            f"two functions answer {kind.op!r}: {HANDLERS[kind].function.__name__} and {handler.function.__name__}"
        )
    HANDLERS[kind] = handler


def seconds(milliseconds: int) -> float | None:
    """Convert a time limit of a request to seconds; None for no limit."""
    return None if milliseconds < 0 else milliseconds / 1000
