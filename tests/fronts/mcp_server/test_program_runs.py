"""`run_program` of the MCP server: programs beside the kernel, and who decides about them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitResult, InputRequiredResult

from cellblock.fronts.mcp_server import program_runs
from cellblock.host import Host
from mcp_clients import Era, connect, data, run, text
from processes import eventually
from suite import first_quick

Connect = Callable[..., AbstractAsyncContextManager[Client]]
NAP = f"sleep {6000 + os.getpid()}"


@pytest.fixture
def client(native_host: Host) -> Connect:
    """Makes a client of a server of its own that offers programs."""
    return partial(connect, native_host, programs=True)


async def program(connected: Client, command: str, **arguments: Any) -> CallToolResult:
    result = await connected.call_tool("run_program", {"command": command, **arguments})
    assert isinstance(result, CallToolResult)
    return result


async def test_it_is_offered_if_that_is_wanted(native_host: Host, client: Connect, tmp_path: Path) -> None:
    async with connect(native_host, tmp_path) as connected:
        assert "run_program" not in [tool.name for tool in (await connected.list_tools()).tools]
        assert (await program(connected, "true")).is_error
    async with client(tmp_path) as connected:
        (tool,) = [tool for tool in (await connected.list_tools()).tools if tool.name == "run_program"]
        assert "session" not in tool.input_schema["properties"]


async def test_a_program_runs_beside_the_kernel(client: Connect, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    async with client(tmp_path) as connected:
        done = await program(connected, "pwd; echo err >&2; exit 3", cwd="d")
        assert (text(done), done.is_error) == (f"{tmp_path}/d\nerr\n[exit status 3]", False)
        assert data(done) == {"status": "exited", "exit_code": 3}
        cell = asyncio.create_task(run(connected, "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n'on'"))
        assert text(await program(connected, "touch go")) == "(no output)"
        assert text(await cell) == "'on'"


@pytest.mark.slow
async def test_long_output_is_cut_and_kept_in_a_file(client: Connect, tmp_path: Path) -> None:
    async with client(tmp_path) as connected:
        done = await program(connected, "seq 9999", max_output_chars=1000)
        assert len(text(done)) < 1200
        (kept,) = (tmp_path / "outputs").glob("program-*.txt")
        assert f"exceeded 1000 character limit] All of it: outputs/{kept.name}\n" in text(done)
        assert text(done).endswith("9999")
        assert kept.read_text().split() == [str(number) for number in range(1, 10000)]


@pytest.mark.slow
async def test_what_does_not_end_by_itself_is_stopped(
    client: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_runs, "_BEAT", 0.05)
    async with client(tmp_path) as connected:
        late = await program(connected, f"echo begun; {NAP}", timeout=0.3)
        assert (text(late), late.is_error) == ("begun\n[stopped after 0.3 s]", True)
        call = asyncio.create_task(program(connected, f"touch begun; {NAP}"))
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait([call])

        async def gone() -> bool:
            return NAP not in text(await program(connected, "ps -eo args | grep '^sleep' || true"))

        await eventually(gone)


@pytest.mark.parametrize("era", first_quick(["auto", "legacy"]))
async def test_a_person_is_asked(client: Connect, tmp_path: Path, era: Era) -> None:
    asked: list[str] = []
    said = ["no", "yes", "decline"]

    async def person(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        if (answer := said.pop(0)) == "decline":
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={"decision": answer})

    async with client(tmp_path, era, person, approve="ask", approve_shell_cmds=True) as connected:
        refused = await program(connected, "touch made")
        assert (text(refused), refused.is_error) == ("AccessError: the command was not approved: rejected", True)
        assert not (tmp_path / "made").exists()
        assert text(await program(connected, "touch made")) == "(no output)"
        assert (tmp_path / "made").exists()
        assert (await program(connected, "touch made")).is_error
    expected = f"The agent wants to run a command: shell.shell(command='touch made', cwd={str(tmp_path)!r})"
    assert asked == [expected] * 3


@pytest.mark.slow
async def test_an_answer_is_for_the_command_that_was_asked_about(client: Connect, tmp_path: Path) -> None:
    async def person(context: Any, params: Any) -> ElicitResult:
        raise AssertionError

    async with client(tmp_path, "auto", person, approve="ask", approve_shell_cmds=True, transport="http") as connected:
        call: Any = partial(connected.session.call_tool, "run_program", allow_input_required=True)
        first = await call({"command": "pwd"})
        assert isinstance(first, InputRequiredResult)
        yes = {"shell": ElicitResult(action="accept", content={"decision": "yes"})}
        assert isinstance(await call({"command": "pwd"}, input_responses=yes), InputRequiredResult)
        with pytest.raises(MCPError):  # the SDK seals the state with the arguments of the call
            await call({"command": "touch made"}, input_responses=yes, request_state=first.request_state)
        done = await call({"command": "pwd"}, input_responses=yes, request_state=first.request_state)
        handle = data(done)["session"]
        assert text(done) == f"[session {handle}]\n{tmp_path / handle}"  # the session that the question was about


async def test_rules_decide(client: Connect, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\ndecision = "allow"\nkind = "shell"\narguments = { command = "echo *" }\n')
    async with client(tmp_path, approve="rules", rules=rules, approve_shell_cmds=True) as connected:
        assert text(await program(connected, "echo a")) == "a"
        assert (await program(connected, "touch made")).is_error
        assert not (tmp_path / "made").exists()
