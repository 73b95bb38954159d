"""Sessions whose code calls tools: servers to call, and streams whose requests somebody decides."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from cellblock import ApprovalRequest, CodeExecutionChunk, CodeExecutionResult, CodeExecutor
from cellblock.model.decisions import Decision
from cellblock.tools.mcp.params import StdioServer
from cellblock.tools.registry.approvals import Approvals
from cellblock.tools.registry.servers import ServerRegistry
from processes import below, command_line

SERVERS = Path(__file__).parent / "servers"
Decide = Callable[[ApprovalRequest], Awaitable[object]]

CALL = "from cellblock.tools.calling.runner import ToolRunner\nbad = ToolRunner('bad')\n"
"""What cells begin with that call the hostile server, which starts quickly."""

ASK = CALL + 'print(await bad.run("ask", {"message": "May I?"}))'
"""A cell in which the hostile server asks whether it may."""


def register(workspace: Path, name: str = "bad", mode: str = "good") -> None:
    """Make a hostile server known to the sessions of a workspace."""
    params = StdioServer(sys.executable, (str(SERVERS / "hostile_server.py"), mode))
    ServerRegistry().register(name, params, "", str(workspace / "mcptools"))


def desk(notes: Path) -> dict[str, Any]:
    """Return the parameters of the server of sdk_server.py."""
    return {
        "command": sys.executable,
        "args": [str(SERVERS / "sdk_server.py"), str(notes)],
        "env": {"SECRET": "${DESK_SECRET}"},
    }


def servers_below(pid: int) -> set[int]:
    """Return the MCP servers that are running below a process."""
    names = ("hostile_server.py", "sdk_server.py", "mcp-server-")
    lines = {process: command_line(process) for process in below(pid)}
    return {process for process, line in lines.items() if "keeper.py" not in line and any(name in line for name in names)}


async def accept(request: ApprovalRequest) -> None:
    """Accept everything."""
    await request.accept()


async def reject(request: ApprovalRequest) -> None:
    """Reject everything."""
    await request.reject()


class Streamed:
    """What came of a streamed cell."""

    def __init__(self) -> None:
        self.asked: list[ApprovalRequest] = []
        self.shown = ""
        self.result = CodeExecutionResult(status="interrupted")  # such an execution has no result

    @property
    def text(self) -> str:
        """The result's text."""
        return self.result.text or ""


async def streamed(executor: CodeExecutor, code: str, decide: Decide = accept, **options: Any) -> Streamed:
    """Run a cell, and have its requests decided as they come."""
    seen = Streamed()
    async for item in executor.stream(code, **options):
        match item:
            case ApprovalRequest():
                seen.asked.append(item)
                await decide(item)
            case CodeExecutionChunk():
                seen.shown += item.text
            case CodeExecutionResult():
                seen.result = item
    return seen


def recorded(count: int) -> list[Decision]:
    """Return the last decisions on record, oldest first."""
    with Approvals() as approvals:
        return approvals.last(count)[::-1]
