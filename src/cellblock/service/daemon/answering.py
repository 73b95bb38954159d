"""Dispatch of requests to handlers, including the error for a session that ended meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import nullcontext
from typing import Any

from cellblock.errors import CheckpointError, KernelDiedError, LaunchError, ProtocolError, StateError
from cellblock.operations import OPERATIONS
from cellblock.operations.base import Request
from cellblock.service.daemon import (  # noqa: F401  # each enters its handlers
    approval_handlers,
    checkpoint_handlers,
    clone_handlers,
    environment_handlers,
    execution_handlers,
    file_handlers,
    moving,
    network_handlers,
    overview_handlers,
    program_handlers,
    save_handlers,
    secret_handlers,
    session_handlers,
    tool_handlers,
)
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.handlers import HANDLERS

_BY_ENDING = (KernelDiedError, LaunchError, CheckpointError, ProtocolError, StateError)
"""Errors of clients that use a session while another one ends it."""


async def answer(server: Server, request: Request[Any], body: bytes) -> Any:
    """Handle a request; return JSON data, bytes, or an iterator of parts.

    Raises:
        CellblockError: The request failed.
    """
    named = server.sessions.known(getattr(request, "session", ""))
    handler = HANDLERS[type(request)]
    try:
        with nullcontext() if named is None else named.answering():
            return await (handler.function(server, request, body) if handler.with_body else handler.function(server, request))
    except _BY_ENDING as error:
        if named is None or not named.ended:
            raise
        raise StateError(f"session {named.record.name!r} was ended before {request.op!r} was done") from error


def check(operations: Iterable[type[Request[Any]]], handled: Collection[type[Request[Any]]]) -> None:
    """Check that each operation has a handler.

    Raises:
        TypeError: An operation has no handler.
    """
    missing = [kind.op for kind in operations if kind not in handled]
    if missing:
        raise TypeError(f"nothing answers {', '.join(map(repr, missing))}: write a handler, with the decorator `answers`")


check(OPERATIONS.values(), HANDLERS)
