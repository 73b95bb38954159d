"""What MCP servers ask in the middle of a call reaches the person at the client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp_types import ElicitResult

from cellblock import CodeExecutor
from cellblock.host import Host
from cellblock.tools.approvals.elicitation import Elicitation
from mcp_clients import Era, connect, run, text
from processes import eventually
from tool_sessions import register

ASK = """
from cellblock.tools.calling.runner import ToolRunner
print(await ToolRunner("bad").run("ask", {"message": "May I\\x1b[2J?"}))
"""


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


LONG = """
from cellblock.tools.calling.runner import ToolRunner
print(str(await ToolRunner("bad").run("ask", {"message": "x" * SIZE + "the end"}))[-60:])
"""


@pytest.mark.parametrize("era", ["auto", "legacy"])
@pytest.mark.parametrize("reads", [9, 1], ids=["all parts", "the first part"])
async def test_what_is_long_is_shown_in_parts_that_must_all_be_read(
    native_host: Host, tmp_path: Path, era: Era, reads: int
) -> None:
    register(tmp_path)
    asked: list[str] = []

    async def person(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        choices = params.requested_schema["properties"]["decision"]["enum"]
        assert len(params.message) < 4_200
        if "once" in choices:
            return ElicitResult(action="accept", content={"decision": "once"})
        read = len(asked) <= reads
        return ElicitResult(action="accept", content={"decision": choices[0 if read else -1]})

    async with connect(native_host, tmp_path, era, person, approve="ask") as connected:
        said = text(await run(connected, LONG.replace("SIZE", "9_000").replace('"ask"', '"echo"')))
    shown = [message for message in asked if message.startswith("Part ")]
    assert shown[0].startswith("Part 1 of 3. The code wants to call a tool: bad.echo(message='xxx")
    if reads == 1:
        assert "rejected" in said
    else:
        assert "the end" in shown[-1]
        assert "the end" in said


async def test_what_is_too_long_to_be_read_is_refused_with_the_reason(native_host: Host, tmp_path: Path) -> None:
    register(tmp_path)

    async def person(context: Any, params: Any) -> ElicitResult:
        raise AssertionError

    async with connect(native_host, tmp_path, "auto", person, approve="ask") as connected:
        said = text(await run(connected, LONG.replace("SIZE", "40_000").replace('"ask"', '"echo"')))
    assert "it has 40,027 characters, and a person is shown 32,000 at most" in said


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_all_of_a_server_that_is_to_be_registered_is_shown(native_host: Host, tmp_path: Path, era: Era) -> None:
    shown: list[str] = []

    async def person(context: Any, params: Any) -> ElicitResult:
        shown.append(params.message)
        choices = params.requested_schema["properties"]["decision"]["enum"]
        return ElicitResult(action="accept", content={"decision": "no" if "yes" in choices else choices[0]})

    program = "# " + "harmless " * 600 + "\n" + " " * 300 + "import os; os.system('evil')"
    wanted = {"server_name": "x", "server_params": {"command": "python", "args": ["-c", program]}}
    async with connect(native_host, tmp_path, era, person, approve="ask") as connected:
        said = text(await connected.call_tool("register_mcp_server", wanted))
        assert len(shown) == 2
        assert "[301 spaces, 1 line end]import os; os.system('evil')" in shown[1]
        assert "was not registered: rejected" in said
        wanted["server_params"]["args"][1] *= 9  # type: ignore[index]
        assert "a person is shown 32,000 at most" in text(await connected.call_tool("register_mcp_server", wanted))
    assert len(shown) == 2
