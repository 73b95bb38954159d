"""Runs programs for models: decides about them as about commands of code, and reports progress."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any

import anyio

from cellblock.errors import CellblockError
from cellblock.fronts.mcp_server import answers, deciding
from cellblock.model.decisions import CommandRequest
from cellblock.model.programs import as_command
from cellblock.operations.data import milliseconds
from cellblock.operations.files import WriteFile
from cellblock.operations.programs import Exec
from cellblock.tools.approvals.call import Call

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context
    from mcp_types import CallToolResult, InputRequiredResult

    from cellblock.fronts.mcp_server.clients import Clients
    from cellblock.model.programs import ExecResult
    from cellblock.model.sessions import SessionRecord

_BEAT = 5.0
"""Seconds between two reports of progress: hosts give up calls that are silent for minutes."""


async def decide_command(
    clients: Clients, session: SessionRecord, command: CommandRequest, ctx: Context[Any, Any]
) -> InputRequiredResult | None:
    """Decide about a command, if commands of code need approval, too.

    Returns:
        A question that the client must answer first; None if the command may run.

    Raises:
        AccessError: The command is not allowed.
    """
    if not clients.options.approve_shell_cmds:
        return None
    arguments = {name: value for name, value in command.to_dict().items() if name != "tool" and value}
    return await deciding.decide(
        clients,
        Call.freeze("shell", "shell", command.tool, arguments),
        "The agent wants to run a command:",
        ctx,
        refused="the command was not approved",
        session=session.kernel_id,
        handle=session.name,
    )


async def run(
    clients: Clients,
    session: SessionRecord,
    command: CommandRequest,
    timeout: float,
    most: int,
    ctx: Context[Any, Any],
    handle: str,
) -> CallToolResult:
    """Run a command, and return the answer. Cancelling the call stops the command.

    Args:
        clients: The sessions.
        session: The session.
        command: The command.
        timeout: Limit in seconds.
        most: Characters of the output to show.
        ctx: The call.
        handle: The session's handle, if the client needs it.
    """
    began = time.monotonic()
    request = Exec(session.kernel_id, as_command(command.command), command.cwd, {}, milliseconds(timeout), merge=True)
    running = asyncio.create_task(clients.ask(request))
    try:
        while not (await asyncio.wait([running], timeout=_BEAT))[0]:
            await ctx.report_progress(time.monotonic() - began, message="running")
    finally:
        if not running.done():
            with anyio.CancelScope(shield=True):
                running.cancel()
                await asyncio.wait([running])
    return await _answer(clients, session, running.result(), most, handle)


async def _answer(clients: Clients, session: SessionRecord, result: ExecResult, most: int, handle: str) -> CallToolResult:
    shown = result.for_model() or "(no output)"
    if len(shown) > most:
        kept = f"outputs/program-{secrets.token_hex(4)}.txt"
        try:
            await clients.ask(WriteFile(session.kernel_id, kept), result.stdout)
        except CellblockError:
            kept = ""
        what = "Its beginning and end" if result.truncated else "All of it"
        shown = answers.cut(shown, most, f"{what}: {kept}" if kept else "")
    failed = result.status != "exited"
    return answers.text(shown, handle, error=failed, status=result.status, exit_code=result.exit_code)
