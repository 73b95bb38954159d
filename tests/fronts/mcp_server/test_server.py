"""The MCP server, by a real client: in this process, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitResult, InputRequiredResult

from cellblock.fronts.mcp_server import answers
from cellblock.fronts.mcp_server.clients import Clients
from cellblock.fronts.mcp_server.server import INSTRUCTIONS, build
from cellblock.fronts.mcp_server.server_options import ServerOptions
from cellblock.host import Host
from cellblock.model import HistoryEntry
from cellblock.model.checkpoints import FileAction, Undone
from cellblock.operations.executions import Submit
from cellblock.operations.sessions import Create
from mcp_clients import Era, connect, data, run, text
from suite import first_quick

TIME = {"command": sys.executable, "args": ["-m", "mcp_server_time", "--local-timezone", "UTC"]}
HOSTILE = str(Path(__file__).parents[2] / "servers" / "hostile_server.py")
CONVERT = """
from mcptools.time.convert_time import Params, run
for hour in ("09:30", "10:30"):
    print(run(Params(source_timezone="Asia/Tokyo", time=hour, target_timezone="Asia/Kolkata")).time_difference)
"""
Connect = Callable[..., AbstractAsyncContextManager[Client]]


class Person:
    """Somebody at the client, who answers what the server asks."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        answer = self.answers.pop(0)
        if answer == "decline":
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={"decision": answer})


@pytest.fixture
def client(native_host: Host) -> Callable[..., AbstractAsyncContextManager[Client]]:
    """Makes a client of a server of its own."""
    return functools.partial(connect, native_host)


async def test_a_session_of_a_model(client: Connect, tmp_path: Path) -> None:
    """Cells share variables and say what changed, errors are short, a long cell is looked at again, a reset forgets all."""
    async with client(tmp_path) as connected:
        first = await run(connected, "x = 41\ny = 'text'")
        assert data(first) == {"status": "success", "execution_count": 1, "changed": {"x": "int", "y": "str"}}
        second = await run(connected, "x += 1\ndel y\nx")
        assert (text(second), second.is_error) == ("42", False)
        assert data(second) == {"status": "success", "execution_count": 2, "changed": {"x": "int"}, "deleted": ["y"]}

        failed = await run(connected, "def ratio(a, b):\n    return a / b\nratio(1, 0)")
        assert failed.is_error
        assert text(failed).startswith("Error: ZeroDivisionError: division by zero\n")
        assert data(failed)["status"] == "error"

        result = await connected.call_tool("execute_ipython_cell", {"code": "z = 1", "timout": 3})
        assert result.is_error
        assert "nothing was done: execute_ipython_cell has no argument 'timout'; did you mean 'timeout'?" in text(result)
        assert "NameError" in text(await run(connected, "z"))

        code = "import os, time\nprint('begun')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('done')"
        going = data(await run(connected, code, wait=0.2))
        assert going["status"] == "running"
        (tmp_path / "go").touch()
        assert text(await connected.call_tool("execute_ipython_cell", {"cell": going["cell"]})) == "begun\ndone"
        unknown = await connected.call_tool("execute_ipython_cell", {"cell": "nothing"})
        assert text(unknown) == "NotFoundError: there is no cell 'nothing', or it is no longer stored: run the code again"

        call = asyncio.create_task(run(connected, "open('begun', 'w').close()\nwhile True: time.sleep(0.01)"))
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait([call])
        assert text(await run(connected, "'free'", timeout=20)) == "'free'"

        await connected.call_tool("reset", {})
        assert (await run(connected, "x")).is_error


@pytest.mark.parametrize("era", first_quick(["auto", "legacy"]))
async def test_a_person_is_asked(client: Connect, tmp_path: Path, era: Era) -> None:
    person = Person("no", "decline", "once", "always in this session: exactly this command", "no")
    async with client(tmp_path, era, person, approve="ask", approve_shell_cmds=True) as connected:
        for _ in range(2):  # a refusal is for once, also one by the client
            assert "the command was not approved" in text(await run(connected, "!echo one"))
        assert text(await run(connected, "!echo one")) == "one"
        assert text(await run(connected, "!echo two\n!echo two")) == "two\ntwo"
        assert "the command was not approved" in text(await run(connected, "!echo three"))
        assert len(person.asked) == 5
        assert person.asked[0].startswith("The code wants to run a command: shell.shell(command='echo one', ")


async def test_a_client_that_cannot_ask_is_refused_what_no_rule_allows(client: Connect, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("")
    for approve, why in (("ask", "this client shows no questions"), ("rules", "--approve rules asks no person")):
        async with client(tmp_path, approve=approve, rules=rules, approve_shell_cmds=True) as connected:
            for said in (text(await run(connected, "!echo one")), text(await register(connected))):
                assert why in said
                assert "To allow it, the user can" in said


NOBODY = {"command": "/none/server", "args": ["--all"]}


async def register(connected: Client, **params: object) -> CallToolResult:
    """Register a server that does not exist: an error tells whether its start was tried."""
    result = await connected.call_tool("register_mcp_server", {"server_name": "none", "server_params": {**NOBODY, **params}})
    assert isinstance(result, CallToolResult)
    return result


@pytest.mark.parametrize("era", first_quick(["auto", "legacy"]))
async def test_a_person_is_asked_before_a_server_is_started(client: Connect, tmp_path: Path, era: Era) -> None:
    person = Person("no", "decline", "yes")
    async with client(tmp_path, era, person, approve="ask") as connected:
        for _ in range(2):
            assert text(await register(connected)).startswith("AccessError: the MCP server 'none' was not registered: ")
        assert text(await register(connected)).startswith("McpServerError: ")
    assert person.asked[0].startswith("The agent wants to start an MCP server, outside of the sandbox: none.register(")
    assert "command='/none/server'" in person.asked[0]
    assert "args=['--all']" in person.asked[0]


@pytest.mark.slow
async def test_rules_decide_about_servers(client: Connect, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('default = "deny"\n[[rule]]\ndecision = "allow"\nkind = "server"\narguments = { command = "/none/*" }\n')
    (tmp_path / "workspace").mkdir()
    for approve in ("auto", "ask", "rules"):
        async with client(tmp_path / "workspace", approve=approve, rules=rules) as connected:
            assert text(await register(connected)).startswith("McpServerError: ")
            assert text(await register(connected, command="/other")).startswith("AccessError: ")


async def test_an_answer_is_for_what_was_asked(client: Connect, tmp_path: Path) -> None:
    asked = {"server_name": "none", "server_params": NOBODY}
    other = asked | {"server_params": NOBODY | {"command": "/other"}}
    yes = {"register": ElicitResult(action="accept", content={"decision": "yes"})}
    async with client(tmp_path, "auto", Person(), approve="ask") as connected:
        question = await call_once(connected, asked)
        assert isinstance(question, InputRequiredResult)
        assert isinstance(await call_once(connected, asked, input_responses=yes), InputRequiredResult)
        with pytest.raises(MCPError):  # the SDK seals the state with the arguments of the call
            await call_once(connected, other, input_responses=yes, request_state=question.request_state)
        started = await call_once(connected, asked, input_responses=yes, request_state=question.request_state)
        assert text(started).startswith("McpServerError: ")


async def test_a_client_decides_nothing_for_another(client: Connect, tmp_path: Path) -> None:
    options: dict[str, Any] = {"approve": "ask", "approve_shell_cmds": True, "transport": "http"}
    async with client(tmp_path, "auto", Person(), **options) as connected:
        question = await call_once(connected, {"code": "!echo one"}, "execute_ipython_cell")
        assert isinstance(question, InputRequiredResult)
        (number,) = question.input_requests or {}
        yes = {number: ElicitResult(action="accept", content={"decision": "once"})}
        other = await call_once(connected, {"code": "'mine'"}, "execute_ipython_cell", input_responses=yes)
        assert text(other).endswith("\n'mine'")
        again = await call_once(connected, {"code": "!echo one"}, "execute_ipython_cell", request_state=question.request_state)
        assert isinstance(again, InputRequiredResult)


async def call_once(connected: Client, arguments: dict[str, Any], tool: str = "register_mcp_server", **more: Any) -> object:
    """Make a call without answering what the server asks."""
    return await connected.session.call_tool(tool, arguments, allow_input_required=True, **more)


@pytest.mark.slow
@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_a_person_is_asked_about_tools(client: Connect, tmp_path: Path, era: Era) -> None:
    person = Person("yes", "always in this session: tool convert_time of server time")
    async with client(tmp_path, era, person, approve="ask") as connected:
        registered = await connected.call_tool("register_mcp_server", {"server_name": "time", "server_params": TIME})
        assert "from mcptools.time." in text(registered)
        assert set(data(registered)["tools"]) == {"convert_time", "get_current_time"}
        assert text(await run(connected, CONVERT)) == "-3.5h\n-3.5h"
        assert len(person.asked) == 2
        assert person.asked[1].startswith("The code wants to call a tool: time.convert_time(source_timezone='Asia/Tokyo'")


@pytest.mark.slow
async def test_tools_are_found_step_by_step(client: Connect, tmp_path: Path) -> None:
    async with client(tmp_path) as connected:
        await connected.call_tool("register_mcp_server", {"server_name": "time", "server_params": TIME})
        found = text(await connected.call_tool("search_tools", {"words": "convert"}))
        assert found.startswith("mcptools.time.convert_time(source_timezone: str, time: str, target_timezone: str) -> ")
        one = await connected.call_tool("search_tools", {"tools": "mcptools.time.convert_time"})
        assert one == await connected.call_tool("search_tools", {"tools": ["mcptools.time.convert_time"]})
        assert text(await connected.call_tool("search_tools", {"tools": ["mcptools.time.convert_time"]})).startswith(
            "time.convert_time("
        )
        assert "class Params" in text(await connected.call_tool("search_tools", {"module": "time.convert_time"}))


@pytest.mark.slow
async def test_saved_actions_are_found_as_well(client: Connect, tmp_path: Path) -> None:
    async with client(tmp_path) as connected:
        code = (
            "from cellblock.tools import actions\n"
            "api = 'def run(word: str) -> str:\\n    \"Say a word twice.\"'\n"
            "actions.save_action('words', 'twice', api, 'def run(word): return word * 2')"
        )
        assert not (await run(connected, code)).is_error
        assert text(await connected.call_tool("search_tools", {"words": "twice"})).startswith("gentools.words.twice(")
        shown = await connected.call_tool("search_tools", {"module": "gentools.words.twice"})
        assert text(shown).startswith("def run(word: str) -> str:")
        assert text(await run(connected, "from gentools.words.twice import run\nrun('a')")) == "'aa'"


async def test_variables_for_the_kernel(client: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNEL_ENV_SECRET_1", "one")
    monkeypatch.setenv("SECRET_3", "three")
    (tmp_path / ".env").write_text("KERNEL_ENV_SECRET_2=two\nSECRET_4=four\n")
    async with client(tmp_path) as connected:
        code = "import os\n[os.environ.get(f'SECRET_{n}') for n in range(1, 5)]"
        assert text(await run(connected, code)) == "['one', 'two', None, None]"


async def test_over_http_each_client_has_a_session_of_its_own(client: Connect, tmp_path: Path) -> None:
    async with client(tmp_path, transport="http", token="t") as connected:
        one = data(await run(connected, "x = 1"))["session"]
        two = data(await run(connected, "x = 2"))["session"]
        assert one != two
        assert text(await run(connected, "x", session=one)).endswith("\n1")
        assert text(await run(connected, "x", session=two)).endswith("\n2")
        other = await run(connected, f"import os\nos.path.exists('../{one}')", session=two)
        assert text(other).endswith("\nFalse")
        assert (await run(connected, "x", session="s-" + "0" * 32)).is_error


@pytest.mark.slow
async def test_over_http_what_a_client_registers_is_its_own(client: Connect, tmp_path: Path) -> None:
    def call(action: str) -> dict[str, Any]:
        return {"server_name": "bad", "server_params": {"command": sys.executable, "args": [HOSTILE, action]}}

    async with client(tmp_path, transport="http", token="t") as connected:
        first = await connected.call_tool("register_mcp_server", call("good"))
        one, two = data(first)["session"], data(await run(connected, "1"))["session"]
        assert text(first).startswith(f"[session {one}]\nbad is registered. Its tools:\n")
        found = [await connected.call_tool("search_tools", {"words": "pid", "session": session}) for session in (one, two, "")]
        assert ["mcptools.bad.pid" in text(answer) for answer in found] == [True, False, False]
        use = "from mcptools.bad.pid import Params, run\nrun(Params()).isdigit()"
        assert "ModuleNotFoundError" in text(await run(connected, use, session=two))
        assert not (await connected.call_tool("register_mcp_server", {**call("pages"), "session": two})).is_error
        assert text(await run(connected, use, session=one)).endswith("\nTrue")
        say = "from mcptools.bad.pid import Params, run\nprint(run(Params()))"
        first_pid, second_pid = [text(await run(connected, say, session=session)).split()[-1] for session in (one, two)]
        assert first_pid != second_pid


@pytest.mark.slow
async def test_sessions_of_other_programs_are_not_there(zygote_host: Host, tmp_path: Path) -> None:
    """On a cluster, the same link leads to them."""
    clients = Clients(ServerOptions(workspace=tmp_path, transport="http", token="t"), zygote_host)
    options = {"working_dir": str(tmp_path), "sandbox": False}
    try:
        other = await clients.ask(Create("other", options))
        ran = await clients.place.link.call(Submit(other.kernel_id, live=True), b"'a secret'")
        async with Client(build(clients)) as connected:
            assert "there is no cell" in text(await run(connected, "", cell=ran["id"]))
            for handle in ("other", other.kernel_id):
                assert "no session has this handle" in text(await run(connected, "1", session=handle))
    finally:
        await clients.close()


async def test_cells_are_undone_and_what_stays_is_said(client: Connect, tmp_path: Path) -> None:
    async with client(tmp_path) as connected:
        await run(connected, "x = 1")
        await run(connected, "x = 2")
        await run(connected, "x = 3\nx")
        undone = await connected.call_tool("undo", {"count": 3})
        assert isinstance(undone, CallToolResult)
        assert text(undone).startswith("The session has its state after cell 0. Undone:\n[1] x = 1\n[2] x = 2\n[3] x = 3")
        assert "Files stay" not in text(undone)
        assert (data(undone)["status"], data(undone)["cells"], undone.is_error) == ("undone", 3, False)
        assert "NameError" in text(await run(connected, "x"))
        refused = await connected.call_tool("undo", {"count": 9})
        assert isinstance(refused, CallToolResult)
        assert refused.is_error
        assert "to undo, not 9" in text(refused)


def test_of_what_was_undone_only_some_is_shown() -> None:
    cell = HistoryEntry("print('\x1b[2J')" + "a" * 1000 + "\nsecond", "success", 3)
    what = Undone([cell] * 50, 2, [FileAction("new\nline", "removed")] * 3, "", ["tool github.delete"] * 21)
    shown = text(answers.undone(what, "s-1"))
    assert shown.startswith("[session s-1]\nThe session has its state after cell 2. Undone:\n[3] print(")
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 2 + 21 + 1 + 3 + 1 + 21
    assert shown.splitlines()[-2:] == ["tool github.delete", "and 1 more"]
    assert max(map(len, shown.splitlines())) < 250


async def test_what_the_definitions_cost_a_model(client: Connect, tmp_path: Path) -> None:
    async with client(tmp_path) as connected:
        tools = (await connected.list_tools()).tools
    assert [tool.name for tool in tools] == [
        "execute_ipython_cell",
        "register_mcp_server",
        "search_tools",
        "install_package",
        "reset",
        "undo",
        "redo",
    ]
    assert sum(len(tool.description or "") for tool in tools) + len(INSTRUCTIONS) < 2048
    assert all("session" not in tool.input_schema["properties"] for tool in tools)
