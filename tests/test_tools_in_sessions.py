"""Code in sessions calls MCP tools: the documented examples of ipybox, and what is decided, shown, stored and stopped."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path

import pytest

from cellblock import (
    ApprovalRequest,
    Approvals,
    CodeExecutionError,
    CodeExecutionResult,
    CodeExecutor,
    ExecutionTimeoutError,
    Filesystem,
    Host,
    InvalidInputError,
    Policy,
    generate_mcp_sources,
)
from cellblock.tools.approvals.rules import Rule, Rules
from cellblock.tools.mcp.params import StdioServer
from cellblock.tools.registry.servers import ServerRegistry
from clocks import Clock
from processes import alive, below, eventually
from tool_sessions import CALL, SERVERS, accept, desk, recorded, register, reject, servers_below, streamed

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
TIME = {"command": str(BIN / "mcp-server-time"), "args": ["--local-timezone", "UTC"]}
Make = Callable[..., CodeExecutor]


@pytest.fixture(scope="module")
async def workspace(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """A directory with the APIs of three servers, and a repository."""
    place = tmp_path_factory.mktemp("project")
    subprocess.run(["git", "init", "-q", place / "repository"], check=True)
    (place / "repository" / "new.txt").write_text("new")
    git = {"command": str(BIN / "mcp-server-git"), "args": ["--repository", str(place / "repository")]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DESK_SECRET", "12345")
        for name, params in (("time", TIME), ("git", git), ("desk", desk(place / "notes"))):
            await generate_mcp_sources(name, params, place / "mcptools")
        register(place)
        yield place


@pytest.fixture(params=[True, False], ids=["sandbox", "no sandbox"])
def make(
    request: pytest.FixtureRequest,
    zygote_host: Host,
    native_host: Host,
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Make:
    """What makes executors, as `CodeExecutor()` in the workspace does; in a sandbox, and without."""
    monkeypatch.chdir(workspace)
    host = native_host if request.param else zygote_host
    return partial(CodeExecutor, sandbox=request.param, host=host, images_dir=tmp_path / "images")


@pytest.fixture
def isolation(native_host: Host, workspace: Path, tmp_path: Path) -> Make:
    """What makes executors in a sandbox."""
    return partial(CodeExecutor, working_dir=workspace, host=native_host, images_dir=tmp_path / "images")


@pytest.fixture
async def executor(isolation: Make, nothing_left_behind: None) -> AsyncIterator[CodeExecutor]:
    """A sandboxed executor in the workspace."""
    async with isolation() as executor:
        yield executor


async def number(executor: CodeExecutor, tool: str = "pid", server: str = "bad") -> int:
    """Return what a tool says that says a number."""
    return int(ast.literal_eval((await executor.execute(f"{CALL}ToolRunner({server!r}).run_sync({tool!r}, {{}})")).text or ""))


# -- what ipybox documents ---------------------------------------------------------------------------------------------


async def test_the_quickstart(make: Make) -> None:
    code = """
from mcptools.time.get_current_time import Params, Result, run

result: Result = run(Params(timezone="Europe/Vienna"))

for line in [result]:
    print(f"- [{line.timezone}]({line.is_dst in (True, False)})")
"""
    asked = []
    async with make() as executor:
        async for item in executor.stream(code):
            match item:
                case ApprovalRequest() as req:
                    asked.append(f"{req}")
                    await req.accept()
                case CodeExecutionResult():
                    assert item.text == "- [Europe/Vienna](True)"
    assert asked == ["time.get_current_time(timezone='Europe/Vienna')"]


async def test_a_tool_call_is_approved(make: Make) -> None:
    code = """
from mcptools.desk.add import Params, Result, run

result: Result = run(Params(a=1, b=2))
print(f"total = {result.total}")
"""
    async with make() as executor:
        seen = await streamed(executor, code)
    assert seen.text == "total = 3"
    (request,) = seen.asked
    assert (request.server_name, request.tool_name, request.kind) == ("desk", "add", "tool")
    assert {name: request.tool_args[name] for name in ("a", "b")} == {"a": 1, "b": 2}


async def test_execute_approves(make: Make, workspace: Path) -> None:
    async with make() as executor:
        # By its whole path: the server does not run in the workspace.
        repository = str(workspace / "repository")
        code = f"from mcptools.git import git_status\nprint(git_status.run(git_status.Params(repo_path={repository!r})))"
        assert "new.txt" in ((await executor.execute(code)).text or "")
        with Approvals() as trail:
            [decision] = trail.last(session=executor.session_id)
            assert trail.last(session=make().session_id) == []
    assert (decision.outcome, decision.by, decision.tool) == ("allow", "caller", "git_status")


async def test_rejecting_raises_in_the_code_and_out_of_it(make: Make, workspace: Path) -> None:
    code = "from mcptools.desk import note\nnote.run(note.Params(text='rejected'))"
    async with make() as executor:
        with pytest.raises(CodeExecutionError, match=r"ToolRunnerError: Approval request for desk\.note rejected"):
            await streamed(executor, code, reject)
        caught = "try: note.run(note.Params(text='rejected'))\nexcept Exception as error: print(error)"
        assert (await streamed(executor, caught, reject)).text == "Approval request for desk.note rejected"
    assert not (workspace / "notes").exists() or "rejected" not in (workspace / "notes").read_text()


async def test_nobody_decides_in_time(make: Make) -> None:
    async def wait(request: ApprovalRequest) -> None:
        assert await request.response() is False

    async with make(approval_timeout=0.3) as executor:
        with pytest.raises(CodeExecutionError, match=r"request for bad\.echo expired: no decision arrived within 0\.3 s"):
            await streamed(executor, f"{CALL}bad.run_sync('echo', {{}})", wait)
        assert (await executor.execute("'goes on'")).text == "'goes on'"
    assert (recorded(1)[0].outcome, recorded(1)[0].by) == ("deny", "nobody")


async def test_a_timeout_can_include_the_wait_for_approval(make: Make) -> None:
    asked: list[ApprovalRequest] = []

    async def note(request: ApprovalRequest) -> None:
        asked.append(request)

    async with make(timeout_includes_approvals=True) as executor:
        with pytest.raises(ExecutionTimeoutError) as caught:
            await streamed(executor, f"x = 1\n{CALL}bad.run_sync('echo', {{}})", note, timeout=1)
        assert isinstance(caught.value, TimeoutError)
        await eventually(lambda: asked[0].state == "withdrawn")
        assert (await executor.execute("x")).text == "1", "variables are kept"


@pytest.mark.slow
async def test_a_timeout_leaves_it_out(make: Make) -> None:
    with Clock() as clock:

        async def late(request: ApprovalRequest) -> None:
            await clock.advance(20)  # longer than the cell may take
            await request.accept()

        async with make() as executor:
            seen = await streamed(executor, f"{CALL}print(bad.run_sync('echo', {{}}))", late, timeout=10)
            assert seen.text == "{}"
            with pytest.raises(ExecutionTimeoutError):
                await streamed(executor, f"{CALL}bad.run_sync('echo', {{}})\nwhile True: pass", timeout=1)


async def test_a_reset_loses_variables_and_stops_servers_which_start_again(make: Make) -> None:
    async with make() as executor:
        await executor.execute("x = 42")
        first = await number(executor)
        await executor.reset()
        assert not alive(first)
        result = await executor.execute("try:\n    print(x)\nexcept NameError:\n    print('x not defined')")
        assert result.text == "x not defined"
        assert await number(executor) != first


async def test_variables_of_the_environment_reach_servers_and_not_the_code(make: Make) -> None:
    async with make() as executor:
        assert await number(executor, "secret", "desk") == len("12345")
        result = await executor.execute("import os\nprint('DESK_SECRET' in os.environ)")
        assert result.text == "False"


@pytest.mark.parametrize("page", ["mcp", "sse"])
async def test_servers_over_http(make: Make, workspace: Path, tmp_path: Path, page: str) -> None:
    with subprocess.Popen(
        [sys.executable, str(SERVERS / "web_server.py"), "secret", str(tmp_path / "file")], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            port = int(await asyncio.to_thread(server.stdout.readline))
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("WEB_TOKEN", "secret")
                params = {"url": f"http://127.0.0.1:{port}/{page}", "headers": {"Authorization": "Bearer ${WEB_TOKEN}"}}
                await generate_mcp_sources(f"web_{page}", params, workspace / "mcptools")
                code = f"from mcptools.web_{page} import add\nprint(add.run(add.Params(a=20, b=22)).total)"
                async with make() as executor:
                    assert (await streamed(executor, code)).text == "42"
        finally:
            server.kill()


# -- approvals ---------------------------------------------------------------------------------------------------------

GATHER = f"""{CALL}
import asyncio
print(*await asyncio.gather(*(bad.run("echo", {{"n": n}}) for n in range(5)), return_exceptions=True), sep="\\n")
"""


async def test_gathered_calls_are_presented_together_and_decided_in_any_order(executor: CodeExecutor) -> None:
    asked: list[ApprovalRequest] = []

    async def decide(request: ApprovalRequest) -> None:
        asked.append(request)
        if len(asked) == 5:
            for one in asked[::-1]:
                await (one.reject() if one.tool_args["n"] == 2 else one.accept())

    seen = await streamed(executor, GATHER, decide)
    answers = ['{"n": 0}', '{"n": 1}', "Approval request for bad.echo rejected", '{"n": 3}', '{"n": 4}']
    assert seen.text.splitlines() == answers


async def test_accepted_always_for_a_tool_or_for_a_call(executor: CodeExecutor) -> None:
    asked: list[ApprovalRequest] = []

    async def always(request: ApprovalRequest) -> None:
        asked.append(request)
        await request.accept(always="call" if request.tool_args.get("n") == 1 else "tool")

    await streamed(executor, f"{CALL}for _ in range(3): bad.run_sync('echo', {{'n': 1}})", always)
    assert [request.tool_args for request in asked] == [{"n": 1}]
    await streamed(executor, f"{CALL}for n in (1, 2, 3, 1, 4): bad.run_sync('echo', {{'n': n}})", always)
    assert [request.tool_args for request in asked] == [{"n": 1}, {"n": 2}]
    await streamed(executor, f"{CALL}bad.run_sync('pid', {{}})", always)
    assert len(asked) == 3, "another tool is asked for"
    await executor.reset()
    await streamed(executor, f"{CALL}bad.run_sync('echo', {{'n': 1}})", always)
    assert len(asked) == 4, "a reset forgets"


async def test_one_answer_is_enough_for_gathered_calls_of_a_tool(executor: CodeExecutor) -> None:
    found: list[str] = []

    async def decide(request: ApprovalRequest) -> None:
        found.append(request.state)
        await request.accept(always="tool")

    seen = await streamed(executor, GATHER, decide)
    assert seen.text.splitlines()[4] == '{"n": 4}'
    assert (found[0], {*found[1:]} - {"accepted"}) == ("pending", set())
    assert {decision.outcome for decision in recorded(5)} == {"allow"}


async def test_rules_decide_before_anybody_is_asked(isolation: Make, workspace: Path) -> None:
    rules = Rules(
        (
            Rule("deny", tool="note", arguments={"text": "evil*"}),
            Rule("allow", server="desk", read_only=True),
            Rule("ask", destructive=True),
        ),
        default="deny",
    )
    code = """
from mcptools.desk import add, note
print(add.run(add.Params(a=1, b=1)).total)
print(note.run(note.Params(text="good")))
try: note.run(note.Params(text="evil"))
except Exception as error: print(error)
"""
    async with isolation(rules=rules) as executor:
        seen = await streamed(executor, code)
    assert [f"{request}" for request in seen.asked] == ["desk.note(text='good')"]
    assert seen.text.splitlines()[:2] == ["2", "noted good"]
    assert seen.text.splitlines()[2].startswith("Approval request for desk.note was not accepted: denied by the rule: ")
    assert "evil" not in (workspace / "notes").read_text()
    trail = recorded(3)
    assert [(decision.tool, decision.outcome) for decision in trail] == [("add", "allow"), ("note", "allow"), ("note", "deny")]
    assert [decision.by == "person" for decision in trail] == [False, True, False]
    assert "read_only" in trail[0].by
    assert trail[1].payload == b'{"text":"good"}'
    assert len({decision.session for decision in trail}) == 1


async def test_execute_does_not_override_rules(isolation: Make) -> None:
    async with isolation(rules=Rules((Rule("deny", server="bad"),))) as executor:
        with pytest.raises(CodeExecutionError, match="denied by the rule"):
            await executor.execute(f"{CALL}bad.run_sync('echo', {{}})")


async def test_commands_are_asked_for_through_the_same_broker(isolation: Make) -> None:
    rules = Rules((Rule("allow", kind="shell", arguments={"command": "echo allowed"}),))
    async with isolation(approve_shell_cmds=True, require_shell_escape=True, rules=rules) as executor:
        seen = await streamed(executor, f"{CALL}!echo allowed\n!echo asked\nprint(bad.run_sync('echo', {{}}))")
        assert seen.text.splitlines() == ["allowed", "asked", "{}"]
        assert [(request.kind, request.tool_name) for request in seen.asked] == [("shell", "shell"), ("tool", "echo")]
        assert seen.asked[0].tool_args["command"] == "echo asked"
        with pytest.raises(CodeExecutionError, match="Rejected: the command was not approved"):
            await streamed(executor, "!echo never", reject)
    assert [decision.kind for decision in recorded(4)] == ["shell", "shell", "tool", "shell"]


async def test_execute_leaves_what_the_reader_of_a_stream_is_asked_to_that_reader(executor: CodeExecutor) -> None:
    async with aclosing(executor.stream(f"{CALL}print(bad.run_sync('echo', {{}}))")) as events:
        request = await anext(events)
        assert isinstance(request, ApprovalRequest)
        other = asyncio.create_task(executor.execute("1"))
        turn = executor.session.cells._turn
        await eventually(lambda: turn._waiters)  # it would have been accepted by now
        assert request.state == "pending"
        await request.reject()
        with pytest.raises(CodeExecutionError, match="rejected"):
            await anext(events)
    assert (await other).text == "1"


# -- what tools show ---------------------------------------------------------------------------------------------------


async def test_progress_and_logs_reach_the_stream_and_images_the_result(executor: CodeExecutor) -> None:
    code = "from mcptools.desk import picture, steps\nprint(steps.run(steps.Params()))\npicture.run(picture.Params())\nNone"
    seen = await streamed(executor, code, chunks=True)
    for n in (1, 2, 3):
        assert f"[progress {n}/3] step {n}\n" in seen.shown
        assert f"[info] logged {n}\n" in seen.shown
    assert "[progress" not in seen.text
    assert seen.text.splitlines()[0] == "done"
    assert [path.read_bytes()[:4] for path in seen.result.images] == [b"\x89PNG"]


async def test_a_tool_that_fails_and_a_server_that_dies_are_errors_in_the_cell(executor: CodeExecutor) -> None:
    with pytest.raises(CodeExecutionError, match="ToolRunnerError: Error executing tool fail"):
        await executor.execute("from mcptools.desk import fail\nfail.run(fail.Params())")
    with pytest.raises(CodeExecutionError, match=r"(?s)'bad' was interrupted.*I cannot go on"):
        await executor.execute(f"{CALL}bad.run_sync('die', {{}})")
    assert alive(await number(executor))


async def test_a_server_that_does_not_start_is_an_error_that_says_so(executor: CodeExecutor, workspace: Path) -> None:
    register(workspace, "stillborn", "dies")
    with pytest.raises(CodeExecutionError, match=r"(?s)'stillborn'.*I was born to die"):
        await executor.execute(f"{CALL}ToolRunner('stillborn').run_sync('echo', {{}})")


async def test_a_server_gets_the_patience_of_its_own_session(isolation: Make, workspace: Path) -> None:
    register(workspace, "slow", "hangs")
    async with isolation() as patient, isolation(connect_timeout=0.5) as hasty:
        assert (await patient.execute("1")).ok
        with pytest.raises(CodeExecutionError, match=r"not ready within 0\.5 s"):
            await hasty.execute(f"{CALL}ToolRunner('slow').run_sync('echo', {{}})")


# -- whose servers -----------------------------------------------------------------------------------------------------


async def test_executors_share_a_server_until_the_last_is_done_with_it(isolation: Make) -> None:
    async with isolation() as first:
        async with isolation() as second, isolation(own_servers=True) as alone:
            shared = await number(first)
            assert await number(second) == shared
            assert await number(alone) != shared
            await second.reset()
            assert alive(shared)
            await number(second)
        assert alive(shared)
        assert servers_below(os.getpid()) == {shared}
        await first.reset()
        assert not alive(shared)


async def test_stopping_closes_everything_whatever_is_pending(isolation: Make) -> None:
    executor = isolation(approve_shell_cmds=True)
    await executor.start()
    await number(executor)
    code = f"{CALL}import asyncio\nasyncio.create_task(bad.run('echo', {{}}))\nawait asyncio.sleep(0)\n!echo never"
    events = executor.stream(code)
    asked = [await anext(events), await anext(events)]
    await executor.stop()
    await events.aclose()
    for request in asked:
        assert isinstance(request, ApprovalRequest)
        await eventually(lambda request=request: request.state == "withdrawn")
    assert servers_below(os.getpid()) == set()


# -- what is withdrawn -------------------------------------------------------------------------------------------------

ASKS = f"{CALL}bad.run_sync('echo', {{}})"


async def pending(executor: CodeExecutor, code: str = ASKS) -> tuple[ApprovalRequest, asyncio.Task[CodeExecutionResult]]:
    """Begin a cell; return what it asks, and the task that reads the rest."""
    asked: asyncio.Future[ApprovalRequest] = asyncio.get_running_loop().create_future()

    async def note(request: ApprovalRequest) -> None:
        asked.set_result(request)

    async def run() -> CodeExecutionResult:
        return (await streamed(executor, code, note)).result

    task = asyncio.create_task(run())
    async with asyncio.timeout(30):
        return await asked, task


async def test_interrupting_withdraws(executor: CodeExecutor) -> None:
    request, task = await pending(executor)
    assert await executor.cancel()
    await eventually(lambda: request.state == "withdrawn")
    assert (await task).status == "interrupted"
    await request.accept()  # changes nothing
    assert await request.response() is False


async def test_leaving_the_stream_withdraws(executor: CodeExecutor) -> None:
    events = executor.stream(ASKS)
    request = await anext(events)
    assert isinstance(request, ApprovalRequest)
    await events.aclose()
    await eventually(lambda: request.state == "withdrawn")


async def test_the_death_of_the_kernel_withdraws(executor: CodeExecutor) -> None:
    code = f"import threading, os\n{CALL}threading.Timer(0.5, os._exit, [3]).start()\n{ASKS}"
    request, task = await pending(executor, code)
    with pytest.raises(CodeExecutionError, match="kernel died"):
        await task
    await eventually(lambda: request.state == "withdrawn")
    assert await number(executor)


async def test_a_reset_withdraws(executor: CodeExecutor) -> None:
    request, task = await pending(executor)
    await executor.reset()
    await eventually(lambda: request.state == "withdrawn")
    assert (await task).status == "interrupted"


BACKGROUND = f"""{CALL}
import asyncio
async def later():
    await asyncio.sleep(0.05)
    return await bad.run("echo", {{"from": "behind"}})
task = asyncio.create_task(later())
None
"""


async def test_what_a_background_task_asks_between_cells_the_next_reader_is_asked(executor: CodeExecutor) -> None:
    assert (await streamed(executor, BACKGROUND)).asked == []
    assert executor._run.services is not None  # type: ignore[union-attr]
    broker = executor._run.services.broker  # type: ignore[union-attr]
    await eventually(lambda: broker.pending)
    seen = await streamed(executor, "print(await task)")
    assert [request.tool_args for request in seen.asked] == [{"from": "behind"}]
    assert seen.text == '{"from": "behind"}'
    assert recorded(1)[0].by == "person"


async def test_what_a_background_task_asks_between_cells_execute_accepts(executor: CodeExecutor) -> None:
    await executor.execute(BACKGROUND)
    assert executor._run.services is not None  # type: ignore[union-attr]
    broker = executor._run.services.broker  # type: ignore[union-attr]
    await eventually(lambda: broker.pending)
    assert (await executor.execute("print(await task)")).text == '{"from": "behind"}'
    assert recorded(1)[0].by == "caller"


async def test_a_server_that_dies_with_its_host(workspace: Path, tmp_path: Path) -> None:
    program = f"""
import asyncio
from cellblock import CodeExecutor

async def main():
    async with CodeExecutor(working_dir={str(workspace)!r}) as executor:
        print((await executor.execute({f"{CALL}print(bad.run_sync('children', {{}}))"!r})).text, flush=True)
        await executor.execute({f"{CALL}bad.run_sync('hang', {{}})"!r})

asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},  # where the next host would find and remove what is left
    ) as process:
        assert process.stdout is not None
        started = ast.literal_eval(await asyncio.to_thread(process.stdout.readline))
        everything = below(process.pid)
        assert {*started} <= everything | {*started}
        assert all(alive(pid) for pid in started)
        process.send_signal(signal.SIGKILL)
    await eventually(lambda: not any(alive(pid) for pid in everything | {*started}))


# -- what may not be ---------------------------------------------------------------------------------------------------


async def test_a_workspace_that_holds_the_state_is_refused(native_host: Host) -> None:
    state = Path(os.environ["CELLBLOCK_HOME"])
    for place in (state, state.parent):
        with pytest.raises(InvalidInputError, match="CELLBLOCK_HOME"):
            await CodeExecutor(working_dir=place, host=native_host).start()


async def test_a_policy_that_lets_the_state_be_written_is_refused(native_host: Host, workspace: Path) -> None:
    """Nor what it lies in: another could be put in its place."""
    state = Path(os.environ["CELLBLOCK_HOME"])
    for place in (state, state.parent):
        with pytest.raises(InvalidInputError, match="CELLBLOCK_HOME"):
            native_host.session(working_dir=workspace, policy=Policy(Filesystem(write=(".", str(place)))))


# -- servers of npm ----------------------------------------------------------------------------------------------------

SANDBOX_MCP = """{
  "enableWeakerNestedSandbox": false,
  "filesystem": {"denyRead": [".env"], "allowWrite": [".", "~/.npm"], "denyWrite": []},
  "network": {"allowedDomains": ["packages.example.org"], "deniedDomains": [], "allowLocalBinding": true}
}"""


@pytest.mark.npm
@pytest.mark.srt
async def test_an_mcp_server_in_a_sandbox_of_srt(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    (project / "examples").mkdir(parents=True)
    (project / "examples" / "sandbox-mcp.json").write_text(SANDBOX_MCP)
    (project / "README.md").write_text("# Project")
    (project / ".env").write_text("SECRET=1")
    monkeypatch.chdir(project)
    server_params = {
        "command": "srt",
        "args": ["--settings", "examples/sandbox-mcp.json", "mcp-server-filesystem", "."],
    }
    await generate_mcp_sources("filesystem", server_params, Path("mcptools"))
    list_dir_code = """
from mcptools.filesystem.list_directory import run, Params
result = run(Params(path="."))
print(result.content)
"""
    read_env_code = """
from mcptools.filesystem.read_file import run, Params
result = run(Params(path=".env"))
print(result.content)
"""
    async with make() as executor:
        result = await executor.execute(list_dir_code)
        assert "README.md" in (result.text or "")
        with pytest.raises(CodeExecutionError, match=r"EACCES|EPERM|not permitted|denied|SECRET") as caught:
            await executor.execute(read_env_code)
        assert "SECRET=1" not in f"{caught.value}"


@pytest.mark.npm
async def test_images_of_the_everything_server(make: Make, workspace: Path) -> None:
    await generate_mcp_sources("everything", {"command": "mcp-server-everything"}, workspace / "mcptools")
    code = "from mcptools.everything import get_tiny_image as tiny\nx = tiny.run(tiny.Params())\nlen(x.images)"
    async with make() as executor:
        seen = await streamed(executor, code, accept)
    assert seen.result.return_value == "1"
    assert [path.read_bytes()[:4] for path in seen.result.images] == [b"\x89PNG"]


async def test_a_permission_does_not_reach_a_server_that_takes_the_name(native_host: Host, tmp_path: Path) -> None:
    register(tmp_path)
    asked: list[ApprovalRequest] = []

    async def decide(request: ApprovalRequest) -> None:
        asked.append(request)
        await request.accept(always="tool")

    async with CodeExecutor(working_dir=tmp_path, host=native_host) as executor:
        code = CALL + "print(await bad.run('pid', {}))"
        first = (await streamed(executor, code, decide)).text
        assert (await streamed(executor, code, decide)).text == first
        assert len(asked) == 1
        params = StdioServer(sys.executable, (str(SERVERS / "hostile_server.py"), "good", "another"))
        ServerRegistry().register("bad", params, "", str(tmp_path / "mcptools"))
        assert (await streamed(executor, code, decide)).text != first, "the call went to the former server"
        assert len(asked) == 2
        (tmp_path / "inner").mkdir()
        ServerRegistry().register("bad", params, "", str(tmp_path / "inner" / "mcptools"))
        await streamed(executor, code, decide)
        assert len(asked) == 3
