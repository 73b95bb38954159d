"""Programs written for ipybox 0.9.2: what they pass, and what they rely on."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from enum import Enum
from pathlib import Path, PurePosixPath

import pytest
from pydantic import BaseModel, Field

from cellblock import (
    ApprovalClient,
    ApprovalRequest,
    CodeExecutionError,
    CodeExecutor,
    Host,
    InvalidInputError,
    ToolRunner,
    ToolRunnerError,
    ToolServer,
    generate_mcp_sources,
)
from cellblock.errors import LaunchError
from cellblock.service.session.tool_directories import ToolDirectories
from cellblock.tools.calling import pool
from tool_sessions import SERVERS, accept, reject, streamed

pytestmark = pytest.mark.usefixtures("shared_host_kept_warm")

PARAMS = {"command": sys.executable, "args": [str(SERVERS / "hostile_server.py"), "good"]}
CALL = "from far.echo import Params, run\nprint(run(Params(word='hi')))"


@pytest.fixture(scope="module")
async def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """A directory outside of every workspace, with the package of a server."""
    patch = pytest.MonkeyPatch()
    patch.setenv("CELLBLOCK_HOME", str(tmp_path_factory.mktemp("state")))
    root = tmp_path_factory.mktemp("elsewhere") / "packages"
    await generate_mcp_sources("far", PARAMS, root)
    yield root
    patch.undo()


@pytest.fixture
def no_idle_connections() -> Iterator[None]:
    """Close the connections to tool servers that the runners keep."""
    yield
    pool.close()


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", [True, False])
async def test_a_package_on_the_python_path_of_the_program_can_be_used(
    elsewhere: Path, workspace: Path, sandbox: bool
) -> None:
    async with CodeExecutor(kernel_env={"PYTHONPATH": str(elsewhere)}, sandbox=sandbox) as executor:
        seen = await streamed(executor, CALL)
    assert (seen.text, [str(request) for request in seen.asked]) == ('{"word": "hi"}', ["far.echo(word='hi')"])


@pytest.mark.slow
async def test_a_package_in_a_named_directory_can_be_used_and_not_changed(elsewhere: Path, workspace: Path) -> None:
    (elsewhere.parent / "secret").write_text("not named")
    async with CodeExecutor(tools=[elsewhere]) as executor:
        assert (await executor.execute(CALL.replace("far", "packages.far"))).text == '{"word": "hi"}'
        with pytest.raises(CodeExecutionError, match="Read-only file system"):
            await executor.execute(f"open({str(elsewhere / 'planted.py')!r}, 'w')")
        assert (await executor.execute(f"import os; os.listdir({str(elsewhere.parent)!r})")).text == "['packages']"


async def test_what_code_names_itself_cannot_be_called(elsewhere: Path, workspace: Path) -> None:
    attempt = f"""
import os, sys
os.environ["PYTHONPATH"] = {str(elsewhere)!r}
sys.path.append({str(elsewhere)!r})
from cellblock.tools.calling.runner import ToolRunner
ToolRunner("far").run_sync("echo", {{}})
"""
    async with CodeExecutor() as executor:
        with pytest.raises(CodeExecutionError, match="there is no MCP server 'far'"):
            await streamed(executor, attempt)


def test_which_directories_a_program_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, packages = tmp_path / "home", tmp_path / "home" / "packages"
    packages.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    path = os.pathsep.join(["packages", "", "missing", str(home)])
    found = ToolDirectories.read([packages], {"PYTHONPATH": path}, home)
    assert found.callable == (str(packages), str(home))
    assert found.readable == (str(packages),), "a search path does not open the home directory"
    assert found.environment["PYTHONPATH"].split(os.pathsep)[-1] == str(home)
    assert ToolDirectories.read((), {}, None) == ToolDirectories((), (), {})
    for wrong, why in ((tmp_path / "missing", "is not a directory"), (home, "contains your home"), (3, "must be directories")):
        with pytest.raises(InvalidInputError, match=why):
            ToolDirectories.read([wrong], {}, None)  # type: ignore[list-item]  # one of them is wrong on purpose


@pytest.mark.slow
async def test_calls_of_tools_need_no_approval_if_the_program_says_so(elsewhere: Path, workspace: Path) -> None:
    options = {"approve_tool_calls": False, "approve_shell_cmds": True, "sandbox": False}
    async with CodeExecutor(kernel_env={"PYTHONPATH": str(elsewhere)}, **options) as executor:  # type: ignore[arg-type]
        seen = await streamed(executor, f"{CALL}\n!echo asked")
    assert seen.text.splitlines() == ['{"word": "hi"}', "asked"]
    assert [request.tool_name for request in seen.asked] == ["shell"]


@pytest.mark.slow
async def test_a_command_is_shown_under_the_name_that_ipybox_has_for_it(workspace: Path) -> None:
    cases: list[tuple[str, str, str]] = [
        ("!echo {word}", "shell", "echo hello"),
        ("got = !echo {word}\nprint(got[0])", "shell", "echo hello"),
        ("%%bash\necho hello", "shell_magic", "echo hello\n"),
        ("%%sh\necho hello", "shell_magic", "echo hello\n"),
    ]
    async with CodeExecutor(approve_shell_cmds=True) as executor:
        await executor.execute("word = 'hello'")
        for code, tool, text in cases:
            seen = await streamed(executor, code)
            assert [(request.tool_name, request.tool_args["cmd"]) for request in seen.asked] == [(tool, text)]
            assert seen.asked[0].tool_args["command"] == text
            assert str(seen.asked[0]).count("hello") == 1
            assert seen.text == "hello"
            with pytest.raises(CodeExecutionError, match="Rejected"):
                await streamed(executor, code, reject)


@pytest.mark.slow
async def test_a_name_that_is_not_defined_stays_in_the_command(workspace: Path) -> None:
    async with CodeExecutor(approve_shell_cmds=True) as executor:
        seen = await streamed(executor, "!echo {nothing_of_this_name}")
    assert "{nothing_of_this_name}" in seen.asked[0].tool_args["cmd"]


@pytest.mark.slow
async def test_a_script_that_fails_is_a_failed_cell(workspace: Path) -> None:
    async with CodeExecutor(approve_shell_cmds=True) as executor:
        with pytest.raises(CodeExecutionError, match="CalledProcessError"):
            await streamed(executor, "%%bash\necho hello\nprint('python')")


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("subprocess.run(['echo'])", "subprocess"),
        ("os.system('echo')", "os.system()"),
        ("os.execvp('echo', ['echo'])", "os.execvp()"),
        ("os.spawnl(os.P_WAIT, '/bin/echo', 'echo')", "os.spawnl()"),
        ("os.posix_spawn('/bin/echo', ['echo'], {})", "os.posix_spawn()"),
        ("pty.spawn(['/bin/echo'])", "pty.spawn()"),
    ],
)
async def test_a_program_that_code_starts_itself_is_refused_by_name(cage: CodeExecutor, way: str, said: str) -> None:
    caught = f"try: {way}\nexcept PermissionError as error: print(isinstance(error, RuntimeError), error)"
    result = await cage.execute(f"import os, pty, subprocess\n{caught}")
    assert (result.text or "").startswith(f"True Direct {said} calls are not allowed")


@pytest.fixture(scope="module")
async def cage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CodeExecutor]:
    """An executor in which only commands that were approved can run."""
    work = tmp_path_factory.mktemp("cage")
    async with CodeExecutor(working_dir=work, approve_shell_cmds=True, require_shell_escape=True, recovery="none") as executor:
        await streamed(executor, "%%bash\necho approved", accept)
        yield executor


async def test_a_cancelled_execution_has_no_text_and_says_that_it_was_interrupted(host: Host, workspace: Path) -> None:
    async with CodeExecutor(sandbox=False, host=host) as executor:
        flag = workspace / "started"
        task = asyncio.create_task(executor.execute(f"print('before')\nopen({str(flag)!r}, 'w')\nwhile True: pass"))
        while not flag.exists():
            await asyncio.sleep(0.01)
        executor.cancel()
        result = await task
        assert (result.text, result.status) == (None, "interrupted")
        assert result.output == "before\n", "what it printed until then is not lost"
        assert (await executor.execute("'goes on'")).text == "'goes on'"


@pytest.mark.slow
async def test_a_kernel_that_is_not_ready_in_time_is_an_error_and_leaves_nothing(workspace: Path) -> None:
    executor = CodeExecutor(kernel_init_timeout=1e-9)
    assert executor.kernel_init_timeout == 1e-9
    with pytest.raises(LaunchError, match="raise kernel_init_timeout"):
        await executor.start()
    executor.kernel_init_timeout = None
    async with executor:
        assert (await executor.execute("1")).text == "1"


def test_a_sandbox_can_be_asked_for_in_several_ways_and_in_one_at_a_time() -> None:
    from cellblock import Policy

    CodeExecutor(sandbox_config={"network": {"allowedDomains": ["example.org"]}}, allow_hosts=["example.com"])
    CodeExecutor(policy=Policy(), allow_hosts=["example.com"])
    for options, why in (
        ({"policy": Policy(), "sandbox_config": {}}, "not both"),
        ({"policy": {"network": {}}}, "must be a Policy"),
        ({"sandbox": False, "allow_hosts": ["example.org"]}, "sandbox=False"),
        ({"allow_hosts": "example.org"}, "list of host names"),
        ({"sandbox_config": {"netwerk": {}}}, "netwerk"),
        ({"sandbox": "yes"}, "sandbox must be True or False"),
        ({"approve_tool_calls": None}, "approve_tool_calls must be True or False"),
        ({"kernel_env": ["A"]}, "kernel_env must be a dict"),
        ({"working_dir": 3}, "working_dir must be the path of a directory"),
        ({"sandbox_config": 5}, "sandbox_config must be the path of a file, or a dict, not 5"),
        ({"allow_hosts": None}, "list of host names"),
        ({"host": "localhost"}, "host must be a Host, not 'localhost'"),
        ({"tool_server_port": "8900"}, "tool_server_port must be a number from 0 to 65535, not '8900'"),
    ):
        with pytest.raises(InvalidInputError, match=why):
            CodeExecutor(**options)


@pytest.mark.slow
async def test_hosts_are_allowed_beside_those_of_the_configuration(workspace: Path) -> None:
    code = """
import urllib.request
def status(host):
    try: urllib.request.urlopen(f"http://{host}.invalid/")
    except OSError as error: return getattr(error, "code", repr(error))
print(status("added"), status("configured"), status("other"))
"""
    config = {"network": {"allowedDomains": ["configured.invalid"]}}
    async with CodeExecutor(sandbox_config=config, allow_hosts=["added.invalid"]) as executor:
        added, configured, other = (await executor.execute(code)).output.split()
    assert added == configured != "403", "the proxy tried to reach both, and found neither"
    assert other == "403"


async def test_wrong_use_says_what_to_do(workspace: Path) -> None:
    with pytest.raises(InvalidInputError, match="limits must be Limits, not 5"):
        await CodeExecutor(limits=5).start()  # type: ignore[arg-type]  # wrong on purpose, as all of these
    async with CodeExecutor() as executor:
        with pytest.raises(InvalidInputError, match=r"one for each package: install\('a', 'b>=1'\), not \['six'\]"):
            await executor.install(["six"])  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="on_input must be a function that takes the prompt"):
            await executor.execute("input()", on_input="yes")  # type: ignore[arg-type]
        for front in (executor, executor.session, Host(isolate="none")):
            with pytest.raises(TypeError, match="write 'async with' instead of 'with'"), front:
                pass
        with pytest.warns(RuntimeWarning, match=r"coroutine 'CodeExecutor\.execute' was never awaited"):
            executor.execute("1")  # type: ignore[unused-coroutine]


def test_the_record_of_a_command_holds_it_once() -> None:
    """`cmd` is a second name for whoever decides; what is recorded and executed is not said twice."""

    async def make() -> ApprovalRequest:
        return ApprovalRequest("shell", "shell", {"command": "echo", "cwd": "/"}, kind="shell")

    request = asyncio.run(make())
    assert json.dumps(request.tool_args) == '{"command": "echo", "cwd": "/", "cmd": "echo"}'
    assert str(request) == "shell.shell(command='echo', cwd='/')"


async def test_a_generated_package_is_called_through_a_tool_server(
    elsewhere: Path, no_idle_connections: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(elsewhere))
    async with ToolServer(port=0, log_level="ERROR") as server:
        monkeypatch.setenv("TOOL_SERVER_PORT", str(server.port))
        echo = importlib.import_module("far.echo")
        assert await echo.run_async(echo.Params(word="hi")) == '{"word": "hi"}'
        with pytest.raises(ToolRunnerError, match=r"no MCP server is registered as 'missing'.*or send its server_params"):
            await ToolRunner("missing").run("echo", {})


@pytest.mark.slow
async def test_arguments_of_a_tool_are_made_json(no_idle_connections: None) -> None:
    class Colour(Enum):
        RED = "red"

    class Point(BaseModel):
        x: int
        label: str = Field(alias="the label")

    given = {
        "when": datetime(2024, 1, 15, 10, 30),
        "colour": Colour.RED,
        "path": PurePosixPath("/a"),
        "set": {1},
        "point": Point.model_validate({"x": 1, "the label": "one"}),
    }
    async with ToolServer(port=0, log_level="ERROR") as server:
        runner = ToolRunner("good", PARAMS, port=server.port)
        assert json.loads(str(await runner.run("echo", given))) == {
            "when": "2024-01-15T10:30:00",
            "colour": "red",
            "path": "/a",
            "set": [1],
            "point": {"x": 1, "the label": "one"},
        }
        whole = await runner.run("echo", Point.model_validate({"x": 2, "the label": "two"}))  # type: ignore[arg-type]
        assert json.loads(str(whole)) == {"x": 2, "the label": "two"}
        with pytest.raises(ToolRunnerError, match="object cannot be expressed in JSON"):
            await runner.run("echo", {"value": object()})


@pytest.mark.slow
async def test_a_tool_server_says_that_it_runs_and_what_came_of_a_request(no_idle_connections: None) -> None:
    async with ToolServer(port=0, approval_required=True, approval_timeout=0.05, log_level="ERROR") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"GET /status HTTP/1.1\r\nHost: localhost:{server.port}\r\n\r\n".encode())
        assert (await reader.readuntil(b"}")).endswith(b'\r\n\r\n{"status":"ok"}')
        writer.close()
        runner = ToolRunner("good", PARAMS, port=server.port)
        with pytest.raises(ToolRunnerError, match=r"good\.echo failed: .*no ApprovalClient"):
            await runner.run("echo", {})
        async with ApprovalClient(callback=_never_decide, port=server.port):
            with pytest.raises(ToolRunnerError, match=r"good\.echo expired: no decision arrived within 0\.05 s"):
                await runner.run("echo", {})


async def _never_decide(request: ApprovalRequest) -> None:
    """Leave a request as it is."""
