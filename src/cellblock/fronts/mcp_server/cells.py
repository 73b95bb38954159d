"""Runs cells for MCP clients: reports progress, asks questions, and stops cells of cancelled calls."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
from mcp_types import InputRequiredResult

from cellblock.errors import NotFoundError
from cellblock.fronts.mcp_server import asking
from cellblock.service.named.executions import Execution
from cellblock.service.named.past import PastExecution

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context

    from cellblock.fronts.mcp_server.clients import Clients
    from cellblock.service.named.session import NamedSession

_BEAT = 5.0
"""Seconds between two reports of progress: hosts give up calls that are silent for minutes."""


async def run(
    clients: Clients, named: NamedSession, execution: Execution | PastExecution, wait: float, ctx: Context[Any, Any]
) -> InputRequiredResult | None:
    """Wait for the end of a cell, within a limit. Meanwhile, report progress and ask about its requests.

    Args:
        clients: The sessions.
        named: The cell's session.
        execution: The cell.
        wait: Seconds to wait at most.
        ctx: The call.

    Returns:
        Questions that the client must answer first, if it is one that has to call again with the answers; else None.
    """
    if ctx.input_responses:
        await asking.take_answers(clients, named, ctx.input_responses)
    deadline = time.monotonic() + wait
    try:
        while not execution.ended and (left := deadline - time.monotonic()) > 0:
            if asking.waiting(clients, named):
                if (questions := await asking.ask(clients, named, execution.record.id, ctx)) is not None:
                    return questions
                continue
            await _pause(clients, named, execution, min(left, _BEAT))
            if not execution.ended:
                await ctx.report_progress(time.monotonic() - deadline + wait, message=_last_words(execution))
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await execution.cancel(named.session)
        raise
    return None


async def _pause(clients: Clients, named: NamedSession, execution: Execution | PastExecution, most: float) -> None:
    """Wait until the cell has ended or asks for something, at most for a time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(most):
            while not execution.ended and not asking.waiting(clients, named):
                await execution.changed()


def _last_words(execution: Execution | PastExecution) -> str:
    lines = execution.said.strip().splitlines()
    return lines[-1][-200:] if lines else "running"


def resumed(clients: Clients, number: str, ctx: Context[Any, Any]) -> tuple[NamedSession, Execution | PastExecution] | None:
    """Return the cell that a call continues: the one that its answers are for, or that it names.

    Raises:
        NotFoundError: It is not known, or is no longer kept.
    """
    number = asking.state(ctx).get("execution", number)
    if not number:
        return None
    try:
        named, execution = clients.sessions.executions.find(number)
    except NotFoundError:
        named = None
    if named is None:
        raise NotFoundError(f"there is no cell {number!r}, or it is no longer kept: run the code again")
    return named, execution
