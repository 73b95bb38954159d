"""What MCP servers ask in the middle of a call reaches the person at the client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp_types import ElicitResult

from cellblock import CodeExecutor
from cellblock.host import Host
from cellblock.tools.approvals.elicitation import Elicitation
from mcp_clients import Era, connect, data, run, text
from processes import eventually
from suite import first_quick
from tool_sessions import register

ASK = """
from cellblock.tools.calling.runner import ToolRunner
print(await ToolRunner("bad").run("ask", {"message": "May I\\x1b[2J?"}))
"""


@pytest.mark.parametrize("era", first_quick(["auto", "legacy"]))
@pytest.mark.parametrize("approve", first_quick(["auto", "ask"]))
async def test_a_server_asks_the_person_at_the_client(native_host: Host, tmp_path: Path, era: Era, approve: str) -> None:
    register(tmp_path)
    asked: list[str] = []
    actions: list[Literal["accept", "decline"]] = ["accept", "decline"]

    async def person(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        if params.message.startswith("MCP server"):
            action = actions.pop(0)
            return ElicitResult(action=action, content={"yes": True} if action == "accept" else None)
        return ElicitResult(action="accept", content={"decision": "once"})

    async with connect(native_host, tmp_path, era, person, approve=approve) as connected:
        said = text(await run(connected, ASK))
        assert said == '{"action": "accept", "content": {"yes": true}}'
        assert asked[-1] == "MCP server 'bad' asks: May I\\x1b[2J?"
        assert len(asked) == (2 if approve == "ask" else 1)
        assert text(await run(connected, ASK)) == '{"action": "decline"}'


async def test_a_client_that_cannot_ask_refuses(native_host: Host, tmp_path: Path) -> None:
    register(tmp_path)
    async with connect(native_host, tmp_path, "auto", None) as connected:
        said, _, note = text(await run(connected, ASK)).partition("\n")
    assert said == '{"action": "decline"}'
    assert note.startswith(
        "[cellblock] The MCP server bad got no answer to its question: no person could be asked, because this client"
    )


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


@pytest.mark.slow
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


@pytest.mark.parametrize("era", first_quick(["auto", "legacy"]))
@pytest.mark.parametrize("reads", first_quick([1, 9]), ids=["the first part", "all parts"])
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


@pytest.mark.slow
async def test_what_is_too_long_to_be_read_is_refused_with_the_reason(native_host: Host, tmp_path: Path) -> None:
    register(tmp_path)

    async def person(context: Any, params: Any) -> ElicitResult:
        raise AssertionError

    async with connect(native_host, tmp_path, "auto", person, approve="ask") as connected:
        said = text(await run(connected, LONG.replace("SIZE", "40_000").replace('"ask"', '"echo"')))
    assert "it has 40,027 characters, and a person is shown 32,000 at most" in said


@pytest.mark.parametrize("era", first_quick(["auto", "legacy"]))
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


@pytest.mark.parametrize("era", first_quick(["auto", "legacy"]))
async def test_two_calls_at_once_ask_once_about_each_command(native_host: Host, tmp_path: Path, era: Era) -> None:
    asked: list[str] = []
    shown = asyncio.Event()
    decide = asyncio.Event()

    async def person(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        shown.set()
        await decide.wait()
        return ElicitResult(action="accept", content={"decision": "once"})

    async with connect(native_host, tmp_path, era, person, approve="ask", approve_shell_cmds=True) as connected:
        calls = [asyncio.create_task(run(connected, f"!echo {word}")) for word in ("one", "two")]
        await shown.wait()
        await asyncio.sleep(0.3)  # time for the other call to ask about the same command
        decide.set()
        assert [text(await call) for call in calls] == ["one", "two"]
    assert [message.count("echo one") for message in asked] == [1, 0]
    assert [message.count("echo two") for message in asked] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("era", first_quick(["auto", "legacy"]))
async def test_two_calls_that_wait_for_one_cell_ask_once(native_host: Host, tmp_path: Path, era: Era) -> None:
    asked: list[str] = []
    decide = asyncio.Event()

    async def person(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        await decide.wait()
        return ElicitResult(action="accept", content={"decision": "once"})

    code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n!echo one"
    async with connect(native_host, tmp_path, era, person, approve="ask", approve_shell_cmds=True) as connected:
        cell = data(await run(connected, code, wait=0.2))["cell"]
        calls = [asyncio.create_task(connected.call_tool("execute_ipython_cell", {"cell": cell})) for _ in range(2)]
        await asyncio.sleep(0.3)
        (tmp_path / "go").touch()
        await eventually(lambda: asked)
        decide.set()
        assert [text(await call) for call in calls] == ["one", "one"]
    assert len(asked) == 1


@pytest.mark.slow
@pytest.mark.parametrize("era", first_quick(["auto", "legacy"]))
async def test_a_call_after_a_cancelled_one_asks_about_its_own_command(native_host: Host, tmp_path: Path, era: Era) -> None:
    asked: list[str] = []
    waits = asyncio.Event()

    async def person(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        if "touch cancelled" in params.message:
            await waits.wait()
        return ElicitResult(action="accept", content={"decision": "once"})

    async with connect(native_host, tmp_path, era, person, approve="ask", approve_shell_cmds=True) as connected:
        first = asyncio.create_task(run(connected, "!touch cancelled"))
        await eventually(lambda: asked)
        first.cancel()
        second = asyncio.create_task(run(connected, "!echo mine"))
        await asyncio.wait([first])
        if era == "auto":  # the client holds the question itself, and the server does not know that it has given up
            await connected.call_tool("reset", {})
        assert text(await second) == "mine" or era == "auto"
    assert len([message for message in asked if "touch cancelled" in message]) == 1
    assert not (tmp_path / "cancelled").exists()


@pytest.mark.slow
async def test_a_form_ends_with_its_request(native_host: Host, tmp_path: Path) -> None:
    """The cell is stopped meanwhile: the client is told to withdraw the form, and the call is answered."""
    asked: list[str] = []
    withdrawn = asyncio.Event()

    async def person(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        try:
            return await asyncio.Event().wait()  # type: ignore[return-value]  # it never ends
        finally:
            withdrawn.set()

    options: dict[str, Any] = {"approve": "ask", "approve_shell_cmds": True}
    async with connect(native_host, tmp_path, "legacy", person, **options) as connected:
        call = asyncio.create_task(run(connected, "!echo one", timeout=600))
        await eventually(lambda: asked)
        await connected.call_tool("reset", {})
        await call
        await withdrawn.wait()


@pytest.mark.slow
async def test_the_choice_for_a_host_covers_this_host_alone(native_host: Host, tmp_path: Path) -> None:
    config = tmp_path / "sandbox.json"
    config.write_text('{"network": {"ask": true}}')
    (tmp_path / "workspace").mkdir()
    asked: list[str] = []

    async def person(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        _, always, _ = params.requested_schema["properties"]["decision"]["enum"]
        assert always == f"always in this session: {'one' if len(asked) == 1 else 'two'}.invalid port 80"
        return ElicitResult(action="accept", content={"decision": always})

    code = "import urllib.request as r\nfor name in ('one', 'one', 'two'):\n"
    code += "    try: r.urlopen(f'http://{name}.invalid/')\n    except OSError: pass"
    options: dict[str, Any] = {"approve": "ask", "sandbox_config": config}
    async with connect(native_host, tmp_path / "workspace", "legacy", person, **options) as connected:
        await run(connected, code)
    assert len(asked) == 2
