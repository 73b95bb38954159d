"""What MCP servers ask in the middle of a call reaches the person at the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp import Client
from mcp_types import ElicitResult

from cellblock import CodeExecutor
from cellblock.approvals.elicitation import Elicitation
from cellblock.host import Host
from cellblock.mcp_server.clients import Clients
from cellblock.mcp_server.options import ServerOptions
from cellblock.mcp_server.server import build
from mcp_clients import run, text
from processes import eventually
from tool_sessions import register

ASK = """
from cellblock.tools.calling.runner import ToolRunner
print(await ToolRunner("bad").run("ask", {"message": "May I\\x1b[2J?"}))
"""
Era = Literal["auto", "legacy"]


@asynccontextmanager
async def connect(host: Host, workspace: Path, era: Era, person: Any, **options: Any) -> AsyncIterator[Client]:
    clients = Clients(ServerOptions(workspace=workspace, **options), host)
    try:
        async with Client(build(clients), mode=era, elicitation_callback=person) as connected:
            yield connected
    finally:
        await clients.close()


@pytest.mark.parametrize("era", ["auto", "legacy"])
@pytest.mark.parametrize("approve", ["auto", "ask"])
async def test_a_server_asks_the_person_at_the_client(native_host: Host, tmp_path: Path, era: Era, approve: str) -> None:
    register(tmp_path)
    asked: list[str] = []

    async def person(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        if params.message.startswith("MCP server"):
            return ElicitResult(action="accept", content={"yes": True})
        return ElicitResult(action="accept", content={"decision": "once"})

    async with connect(native_host, tmp_path, era, person, approve=approve) as connected:
        said = text(await run(connected, ASK))
    assert said == '{"action": "accept", "content": {"yes": true}}'
    assert asked[-1] == "MCP server 'bad' asks: May I\\x1b[2J?"
    assert len(asked) == (2 if approve == "ask" else 1)


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_a_person_can_refuse(native_host: Host, tmp_path: Path, era: Era) -> None:
    register(tmp_path)

    async def person(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="decline")

    async with connect(native_host, tmp_path, era, person) as connected:
        assert text(await run(connected, ASK)) == '{"action": "decline"}'


async def test_a_client_that_cannot_ask_refuses(native_host: Host, tmp_path: Path) -> None:
    register(tmp_path)
    async with connect(native_host, tmp_path, "auto", None) as connected:
        assert text(await run(connected, ASK)) == '{"action": "decline"}'


@pytest.mark.slow
async def test_the_time_that_a_person_takes_does_not_count(native_host: Host, tmp_path: Path) -> None:
    register(tmp_path)
    asked: list[Elicitation] = []
    answered = asyncio.Event()

    async def person(elicitation: Elicitation) -> dict[str, bool]:
        asked.append(elicitation)
        await answered.wait()
        return {"yes": False}

    async with CodeExecutor(working_dir=tmp_path, host=native_host, on_elicitation=person) as executor:
        await executor.execute("from cellblock.tools.calling.runner import ToolRunner\nawait ToolRunner('bad').run('pid', {})")
        going = asyncio.create_task(executor.execute(ASK, timeout=2))
        await eventually(lambda: asked)
        broker = executor._run.services.broker  # type: ignore[union-attr]
        await eventually(lambda: broker.waited > 2.2)
        answered.set()
        assert (await going).text == '{"action": "accept", "content": {"yes": false}}'


async def test_a_cell_that_is_stopped_asks_no_longer(native_host: Host, tmp_path: Path) -> None:
    register(tmp_path)
    asked: list[Elicitation] = []
    left = asyncio.Event()

    async def person(elicitation: Elicitation) -> None:
        asked.append(elicitation)
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    async with CodeExecutor(working_dir=tmp_path, host=native_host, on_elicitation=person) as executor:
        going = asyncio.create_task(executor.execute(ASK))
        await eventually(lambda: asked)
        await executor.session.interrupt()
        await left.wait()
        assert (await going).status == "interrupted"
