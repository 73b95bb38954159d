"""Runs programs beside the kernel for models: decides about them as about commands of code, and reports progress."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any

import anyio

from cellblock.errors import CellblockError
from cellblock.fronts.mcp_server import answers, deciding
from cellblock.model.decisions import CommandRequest
from cellblock.tools.approvals.call import Call

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context
    from mcp_types import CallToolResult, InputRequiredResult

    from cellblock.fronts.mcp_server.clients import Clients
    from cellblock.model.programs import ExecResult
    from cellblock.service.named.session import NamedSession

_BEAT = 5.0
"""Seconds between two reports of progress: hosts give up calls that are silent for minutes."""


async def decide_command(
    clients: Clients, named: NamedSession, command: CommandRequest, ctx: Context[Any, Any]
) -> InputRequiredResult | None:
    """Decide about a command, if commands of code need approval, too.

    Returns:
        A question that the client must answer first; None if the command may run.

    Raises:
        AccessError: It may not.
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
        session=named.record.kernel_id,
        handle=named.record.name,
    )


async def run(
    named: NamedSession, command: CommandRequest, timeout: float, most: int, ctx: Context[Any, Any], handle: str
) -> CallToolResult:
    """Run a command, and return the answer. A call that is cancelled stops it.

    Args:
        named: The session.
        command: The command.
        timeout: Seconds until it is stopped.
        most: Characters of its output to show.
        ctx: The call.
        handle: The session's handle, if the client has to know it.
    """
    began = time.monotonic()
    running = asyncio.create_task(named.session.exec(command.command, cwd=command.cwd, timeout=timeout, merge=True))
    try:
        while not (await asyncio.wait([running], timeout=_BEAT))[0]:
            await ctx.report_progress(time.monotonic() - began, message="running")
    finally:
        if not running.done():
            with anyio.CancelScope(shield=True):
                running.cancel()
                await asyncio.wait([running])
    return await _answer(named, running.result(), most, handle)


async def _answer(named: NamedSession, result: ExecResult, most: int, handle: str) -> CallToolResult:
    shown = result.for_model() or "(no output)"
    if len(shown) > most:
        kept = f"outputs/program-{secrets.token_hex(4)}.txt"
        try:
            await named.session.files.write(kept, result.stdout)
        except CellblockError:
            kept = ""
        what = "Its beginning and end" if result.truncated else "All of it"
        shown = answers.cut(shown, most, f"{what}: {kept}" if kept else "")
    return answers.text(
        answers.with_handle(shown, handle),
        error=result.status != "exited",
        status=result.status,
        exit_code=result.exit_code,
        session=handle,
    )
