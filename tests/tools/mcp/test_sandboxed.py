"""Servers in native sandboxes of their own: real ones at work, and each reason why one does not start."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import (
    CodeExecutor,
    Host,
    InvalidInputError,
    McpServerError,
    ToolRunner,
    ToolRunnerError,
    ToolServer,
    generate_mcp_sources,
)
from cellblock.tools.calling import pool
from cellblock.tools.mcp.params import StdioServer, parse_params
from cellblock.tools.mcp.place import made_absolute
from cellblock.tools.mcp.servers import Servers
from cellblock.tools.registry.servers import ServerRegistry
from cellblock.walls.sandbox.policy import ENV, MAKEABLE, PROTECTED, Policy
from processes import alive, below, command_line, eventually, parents

HERE = Path(__file__).parents[2] / "servers"
HOSTILE = str(HERE / "hostile_server.py")
BIN = Path(sys.executable).parent


@pytest.fixture
def project() -> Iterator[Path]:
    """A directory that is not in /tmp, which sandboxes have for themselves."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        yield Path(place)


def servers(**given: Any) -> Servers:
    return Servers(lambda name: parse_params(name, given), connect_timeout=20, environment=os.environ)


# -- servers at work ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_time_server_in_the_default_sandbox_called_from_a_cell(native_host: Host, tmp_path: Path) -> None:
    params = {"command": str(BIN / "mcp-server-time"), "args": ["--local-timezone", "UTC"], "sandbox": True}
    assert await generate_mcp_sources("time", params, tmp_path / "mcptools") == ["get_current_time", "convert_time"]
    code = """
from mcptools.time.get_current_time import Params, run
print(run(Params(timezone="Europe/Vienna")).timezone)
"""
    async with CodeExecutor(host=native_host, working_dir=tmp_path, images_dir=tmp_path / "images") as executor:
        assert (await executor.execute(code)).text == "Europe/Vienna"
        inner = [pid for pid in below(os.getpid()) if "mcp-server-time" in command_line(pid)]
        assert "1" in {Path(f"/proc/{pid}/status").read_text().split("NSpid:")[1].split("\n")[0].split()[-1] for pid in inner}


@pytest.mark.slow
async def test_a_tool_server_starts_servers_in_sandboxes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(HOSTILE, project / "server.py")
    (project / "sandbox.json").write_text('{"filesystem": {"denyRead": ["/"], "allowRead": ["server.py"]}}')
    monkeypatch.chdir(project)
    code = {"code": f"import os\nsaid = [os.getcwd(), os.path.exists({str(project / 'sandbox.json')!r})]"}
    async with ToolServer(port=0) as server:
        for sandbox, said in (("sandbox.json", ["/home/user", False]), (None, None)):
            params = {"command": sys.executable, "args": ["./server.py", "good"], "sandbox": sandbox}
            runner = ToolRunner("s", params, port=server.port)
            result = ast.literal_eval(str(await runner.run("python", code)))
            assert result == said if said else result[1]
            await runner.reset()
        with pytest.raises(ToolRunnerError, match=r"'sandbox' .* MCP server 's': filesystem\.x is not a known key"):
            await ToolRunner("s", {"command": "x", "sandbox": {"filesystem": {"x": 1}}}, port=server.port).run("python", code)
    pool.close()


@pytest.mark.slow
async def test_the_git_server_in_a_sandbox_reads_one_project_and_no_other(project: Path) -> None:
    for name in ("mine", "other"):
        subprocess.run(["git", "init", "-q", str(project / name)], check=True)
        (project / name / "file").write_text(name)
    allowed = {"filesystem": {"denyRead": ["/"], "allowRead": [str(project / "mine")]}}
    given = {"command": str(BIN / "mcp-server-git"), "sandbox": allowed}
    async with servers(**given) as running:
        mine = await running.call("git", "git_status", {"repo_path": str(project / "mine")})
        assert "No commits yet" in mine.text
        other = await running.call("git", "git_status", {"repo_path": str(project / "other")})
        assert other.is_error
        added = await running.call("git", "git_add", {"repo_path": str(project / "mine"), "files": ["file"]})
        assert added.is_error
        assert "Read-only" in added.text
    async with servers(**given | {"sandbox": False}) as running:
        assert not (await running.call("git", "git_status", {"repo_path": str(project / "other")})).is_error
        assert not (await running.call("git", "git_add", {"repo_path": str(project / "mine"), "files": ["file"]})).is_error


@pytest.mark.npm
async def test_the_filesystem_server_of_npm_in_a_sandbox_called_from_a_cell(
    native_host: Host, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("data", "data/keys", "other"):
        (project / name).mkdir()
    (project / "other" / "file").write_text("other")
    monkeypatch.chdir(project)
    sandbox = {"filesystem": {"denyRead": ["~", "."], "allowWrite": ["./data"], "denyWrite": ["keys"]}}
    params = {"command": "mcp-server-filesystem", "args": ["./data", "/"], "sandbox": sandbox}
    await generate_mcp_sources("files", params, "mcptools")
    code = f"""
from mcptools.files import read_text_file as read, write_file as write
def outcome(module, **arguments):
    try:
        return module.run(module.Params(path=f"{project}/{{arguments.pop('path')}}", **arguments)).content[:20]
    except Exception as error:
        return str(error).split(":")[0]
print([outcome(write, path="data/new", content="written"), outcome(read, path="data/new"), outcome(read, path="other/file"),
       outcome(write, path="data/keys/x", content="x"), outcome(write, path="x", content="x")])
"""
    async with CodeExecutor(host=native_host, working_dir=project, images_dir=project / "images") as executor:
        text = (await executor.execute(code)).text or ""
    assert ast.literal_eval(text) == ["Successfully wrote t", "written", "ENOENT", "EROFS", "EROFS"]
    assert (project / "data" / "new").read_text() == "written"


async def test_a_server_runs_in_the_directory_that_is_named_for_it(project: Path) -> None:
    (project / "work").mkdir()
    (project / ".env").write_text("KEY=1")
    shutil.copy(HOSTILE, project / "server.py")
    given: dict[str, Any] = {"command": sys.executable, "args": ["server.py", "good"], "cwd": str(project)}
    code = {
        "code": "import os\nopen('new', 'w').close()\nsaid = [os.getcwd(), os.access('.env', os.R_OK), os.environ['HOME']]"
    }
    async with servers(**given, sandbox=True) as running:
        assert (await running.call("s", "python", code)).text == repr([str(project), False, "/home/user"])
    assert (project / "new").exists()
    assert sorted(os.listdir(project)) == [".env", "new", "server.py", "work"]  # and no placeholder
    given["sandbox"] = {"filesystem": {"denyRead": ["/"], "allowWrite": ["work"]}}
    async with servers(**given) as running:
        with pytest.raises(McpServerError):
            await running.call("s", "python", code, timeout=20)  # it may write to one directory of it


async def test_a_server_gets_its_own_variables_in_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "secret-value")
    sandbox = {"filesystem": {"denyRead": ["/"], "allowRead": ["${SERVER_PLACE}"]}}
    monkeypatch.setenv("SERVER_PLACE", str(HERE))
    given = {"command": sys.executable, "args": [HOSTILE, "good"], "env": {"KEY": "${THE_KEY}"}, "sandbox": sandbox}
    async with servers(**given) as running:
        env = json.loads((await running.call("s", "env", {})).text)["env"]
    assert env["KEY"] == "secret-value"
    assert (env["USER"], env["HOME"]) == ("user", "/home/user")
    assert "THE_KEY" not in env


# -- servers that do not start -----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_program_that_the_sandbox_does_not_show_is_named(project: Path, native_host: Host) -> None:
    tool = project / "tool"
    tool.mkdir()
    program = tool / "server"
    program.write_text(f"#!{sys.executable}\n" + Path(HOSTILE).read_text())
    program.chmod(0o755)
    (project / "link").symlink_to(program)
    for command, missing in ((program, program), (project / "link", project / "link")):
        async with servers(command=str(command), args=["good"], sandbox=True) as running:
            with pytest.raises(McpServerError) as caught:
                await running.call("s", "pid", {})
        assert str(caught.value) == (
            f"MCP server 's' cannot be used: its sandbox cannot be made: it does not show {missing}, which the program needs: "
            "add the directory that it is installed in to filesystem.allowRead"
        )
    (project / "links").mkdir()
    (project / "links" / "server").symlink_to(program)
    shown = {"filesystem": {"denyRead": ["/"], "allowRead": [str(project / "links")]}}
    async with servers(command=str(project / "links" / "server"), args=["good"], sandbox=shown) as running:
        with pytest.raises(McpServerError, match=f"it does not show {program}, which the program needs"):
            await running.call("s", "pid", {})
    shown = {"filesystem": {"denyRead": ["/"], "allowRead": [str(tool)]}}
    async with servers(command=str(program), args=["good"], sandbox=shown) as running:
        assert (await running.call("s", "echo", {})).text == "{}"
    interpreted = project / "script"
    interpreted.write_text(f"#!/usr/bin/env {tool}/server\n")
    interpreted.chmod(0o755)
    async with servers(
        command=str(interpreted), sandbox={"filesystem": {"denyRead": ["/"], "allowRead": [str(interpreted)]}}
    ) as s:
        with pytest.raises(McpServerError, match=f"it does not show {program}, which the program needs"):
            await s.call("s", "pid", {})


@pytest.mark.slow
async def test_a_script_that_the_sandbox_does_not_show_is_named(project: Path) -> None:
    script = project / "server.py"
    shutil.copy(HOSTILE, script)
    async with servers(command=sys.executable, args=[str(script), "good"], sandbox=True) as running:
        with pytest.raises(
            McpServerError, match=f"exit status 2; its sandbox does not show {script}, which its arguments name"
        ):
            await running.call("s", "pid", {})


async def test_a_sandbox_that_cannot_be_is_an_error_that_says_why() -> None:
    cases: list[tuple[object, str]] = [
        (
            {"filesystem": {"allowWrite": ["/no/such/place"]}},
            "cannot open /no/such/place: openat2: No such file or directory",
        ),
        ({"network": {"allowedDomains": ["http://x.org/"]}}, "http://x.org/"),
        ({"filesystem": {"allowWrite": ["/etc"]}}, "a sandbox cannot have /etc as its workspace"),
    ]
    for sandbox, said in cases:
        async with servers(command=sys.executable, args=[HOSTILE, "good"], sandbox=sandbox) as running:
            with pytest.raises((McpServerError, InvalidInputError), match=said):
                await running.call("s", "pid", {})


@pytest.mark.slow
async def test_a_program_that_does_not_exist_is_an_error_as_without_a_sandbox() -> None:
    async with servers(command="no-such-program", sandbox=True) as running:
        with pytest.raises(McpServerError, match=r"could not be started(?s:.*)no-such-program: No such file or directory"):
            await running.call("s", "pid", {})


@pytest.mark.slow
async def test_no_server_starts_where_no_sandbox_can_be_made(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import asyncio, os
        from cellblock.tools.mcp.servers import Servers
        from cellblock.tools.mcp.params import parse_params
        async def main():
            params = parse_params("s", {{"command": "touch", "args": [{str(tmp_path / "ran")!r}], "sandbox": True}})
            async with Servers(lambda _: params, environment=os.environ) as servers:
                try:
                    await servers.call("s", "pid", {{}})
                except Exception as error:
                    print(error)
        asyncio.run(main())
        """
    )
    # The limit is one of the user namespace that it is written in.
    shell = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", shell, "sh", sys.executable, "-c", program]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(
        "MCP server 's' cannot be used: its sandbox cannot be made: it failed to make a user namespace"
    )
    assert "The setting user.max_user_namespaces is 0" in done.stdout
    assert "sysctl -w user.max_user_namespaces" in done.stdout
    assert "cellblock doctor" in done.stdout
    assert "always the native one, also with isolate='landlock'" in done.stdout
    assert "CELLBLOCK_ISOLATE" not in done.stdout
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["host", "host and keeper"])
async def test_no_sandboxed_server_outlives_its_host(victim: str, project: Path) -> None:
    sandbox = {"filesystem": {"denyRead": ["/"], "allowRead": [str(HERE)], "allowWrite": [str(project)]}}
    program = textwrap.dedent(
        f"""
        import asyncio, os
        from cellblock.tools.mcp.servers import Servers
        from cellblock.tools.mcp.params import parse_params
        async def main():
            params = parse_params("s", {{"command": {sys.executable!r}, "args": [{HOSTILE!r}, "stubborn"],
                                        "sandbox": {sandbox!r}}})
            servers = Servers(lambda _: params, environment=os.environ)
            print((await servers.call("s", "children", {{}})).text, flush=True)
            await asyncio.sleep(1000)
        asyncio.run(main())
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        await asyncio.to_thread(host.stdout.readline)
        everything = below(host.pid)
        assert len(everything) == 5  # keeper, process 1, server and what that has started
        placeholders = {*os.listdir(project)}
        keeper = next(pid for pid, parent in parents().items() if parent == host.pid)
        host.kill()
        if victim != "host":
            os.kill(keeper, 9)
    assert placeholders == {*PROTECTED, ENV} - MAKEABLE
    await eventually(lambda: not any(map(alive, everything)))
    if victim == "host":
        await eventually(lambda: not os.listdir(project))
    else:  # nobody is left to remove the placeholders but the next server there
        async with servers(command=sys.executable, args=[HOSTILE, "good"], sandbox=sandbox) as running:
            await running.call("s", "pid", {})
        assert not os.listdir(project)


# -- how it is said ----------------------------------------------------------------------------------------------------


def test_what_is_no_policy_is_an_error_that_names_the_key() -> None:
    cases: list[tuple[object, str]] = [
        (
            {"filesystem": {"alowWrite": []}},
            "filesystem.alowWrite is not a known key; did you mean 'allowWrite'",
        ),
        ({"network": {"httpProxyPort": 1}}, "network.httpProxyPort is not a known key"),
        ({"resources": {"memory": 1}}, "resources.memory must be an integer from"),
        ({"filesystem": {"allowWrite": "data"}}, "filesystem.allowWrite must be a list of strings"),
        ("/no/such/file.json", "/no/such/file.json cannot be read"),
        (3, "must be True, a dict or the path of a file, not int"),
        ({"policy": {"filesystem": 3}}, "holds a policy that is damaged"),
    ]
    for given, said in cases:
        with pytest.raises(InvalidInputError) as caught:
            parse_params("files", {"command": "x", "sandbox": given})
        assert said in str(caught.value)
        assert "'sandbox' in the parameters of MCP server 'files'" in str(caught.value)


def test_a_sandbox_is_for_a_server_that_is_started_here() -> None:
    with pytest.raises(InvalidInputError, match=r"'sandbox' .* 'web' is for a server that cellblock starts"):
        parse_params("web", {"url": "http://localhost/mcp", "sandbox": True})
    with pytest.raises(InvalidInputError, match=r"'sandbox' .* 'x' would contain srt's own"):
        parse_params("x", {"command": "srt", "sandbox": True})


def test_what_is_stored_is_the_policy_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sandbox.json").write_text('{"filesystem": {"allowWrite": ["./data", "~/x", "${PLACE}"], "denyWrite": ["keys"]}}')
    params = made_absolute(parse_params("s", {"command": "x", "sandbox": "sandbox.json"}), str(tmp_path))
    assert isinstance(params, StdioServer)
    assert params.sandbox is not None
    files = params.sandbox.filesystem
    assert files.write == (f"{tmp_path}/data", "~/x", "${PLACE}")
    assert {".env", f"{tmp_path}/.env"} <= {*files.deny_read}
    assert {"keys", f"{tmp_path}/keys", ".git"} <= {*files.deny_write}
    registry = ServerRegistry(tmp_path / "state")
    registry.register("s", params, "", "")
    Path("sandbox.json").write_text('{"filesystem": {"allowWrite": ["/"]}}')
    assert registry.get("s") == params


def test_the_default_policy_means_the_servers_own_directory_wherever_it_is_registered() -> None:
    params = made_absolute(parse_params("s", {"command": "x", "sandbox": True}), "/somewhere")
    assert isinstance(params, StdioServer)
    assert params.sandbox == Policy()
    settings = {"network": {"allowedDomains": ["a.example"]}, "filesystem": {"denyRead": ["x"]}}
    params = made_absolute(parse_params("s", {"command": "x", "sandbox": settings}), "/somewhere")
    assert isinstance(params, StdioServer)
    assert params.sandbox is not None
    assert (params.sandbox.filesystem.read, params.sandbox.filesystem.write) == ((), (".",))
    settings["filesystem"] = {"allowWrite": ["."]}
    params = made_absolute(parse_params("s", {"command": "x", "sandbox": settings}), "/somewhere")
    assert isinstance(params, StdioServer)
    assert params.sandbox is not None
    assert params.sandbox.filesystem.write == ("/somewhere",)
    for none in (None, False):
        assert parse_params("s", {"command": "x", "sandbox": none}) == parse_params("s", {"command": "x"})
