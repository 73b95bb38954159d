"""Where servers run: what paths come to mean, and that nothing of a workspace is run because it lies there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cellblock import McpServerError, generate_mcp_sources
from cellblock.common import config
from cellblock.tools.mcp.params import RemoteServer, StdioServer, parse_params
from cellblock.tools.mcp.place import empty_directory, files_within, made_absolute
from cellblock.tools.mcp.servers import Servers
from cellblock.tools.registry.servers import ServerRegistry

HOSTILE = str(Path(__file__).parents[2] / "servers" / "hostile_server.py")


def put(directory: Path, command: str, *args: str, **env: str) -> list[str]:
    made = made_absolute(StdioServer(command, args, env), str(directory))
    assert isinstance(made, StdioServer)
    assert made_absolute(made, "/elsewhere") == made, "it means the same everywhere"
    return [made.command, *made.args, *made.env.values()]


def test_relative_paths_are_those_of_the_caller(tmp_path: Path) -> None:
    a, up = str(tmp_path), str(tmp_path.parent)
    assert put(tmp_path, "npx", "-y", "@modelcontextprotocol/server-filesystem", ".") == [
        "npx", "-y", "@modelcontextprotocol/server-filesystem", a,
    ]  # fmt: skip
    assert put(tmp_path, "mcp-server-git", "--repository", "./x") == ["mcp-server-git", "--repository", f"{a}/x"]
    assert put(tmp_path, "g", "--repository=..", "../../y/", "./") == ["g", f"--repository={up}", f"{Path(up).parent}/y/", a]
    assert put(tmp_path, "docker", "-v", "./data:/data", F="./f", D="d") == ["docker", "-v", f"{a}/data:/data", f"{a}/f", "d"]
    assert put(tmp_path, ".venv/bin/server") == [f"{a}/.venv/bin/server"]
    assert put(tmp_path, "./server") == [f"{a}/server"]
    for same in (["/bin/x", "/y"], ["x", "${HOME}/y", ".hidden", "...", "-", "--a=b"], ["${BIN}/x"]):
        assert put(tmp_path, *same) == same


def test_scripts_are_found_and_names_never_become_paths(tmp_path: Path) -> None:
    for name in ("server.py", "index.js", "UTC", "mcp-server-git", "chart.js", "examples"):
        (tmp_path / name).write_text("")
    assert put(tmp_path, "/usr/bin/python3.12", "-u", "server.py") == ["/usr/bin/python3.12", "-u", f"{tmp_path}/server.py"]
    assert put(tmp_path, "uv", "run", "server.py") == ["uv", "run", f"{tmp_path}/server.py"]
    assert put(tmp_path, "node", "index.js") == ["node", f"{tmp_path}/index.js"]
    for same in (["npx", "chart.js"], ["uvx", "mcp-server-git"], ["x", "--local-timezone", "UTC"], ["python", "gone.py"]):
        assert put(tmp_path, *same) == same


def test_a_directory_that_was_asked_for_stays_and_srt_keeps_the_callers() -> None:
    explicit = StdioServer("./x", ("./y",), {}, "/there")
    assert made_absolute(explicit, "/here") == explicit
    assert made_absolute(RemoteServer("http://h"), "/here") == RemoteServer("http://h")
    srt = StdioServer("srt", ("--settings", "examples/sandbox-mcp.json", "npx", "."))
    assert made_absolute(srt, "/here") == StdioServer("srt", srt.args, {"PYTHONSAFEPATH": "1"}, "/here")


def test_what_a_session_could_rewrite_is_named(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("")
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    params = made_absolute(
        parse_params("s", {"command": sys.executable, "args": ["./server.py", "--x=./link.py", "."]}), str(tmp_path)
    )
    assert files_within(params, str(tmp_path)) == [str(tmp_path / "server.py"), str(tmp_path / "link.py")]
    assert files_within(params, str(tmp_path / "elsewhere")) == []


def test_what_a_killed_host_left_is_swept_up_and_what_is_in_use_is_not() -> None:
    code = (
        "import os; from cellblock.tools.mcp.place import *; "
        "made = empty_directory(); made.__enter__(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    top = config.state_directory() / "servers"
    left = {entry.name for entry in top.iterdir()}
    assert left
    with empty_directory() as first:
        Path(first, "file").write_text("")
        with empty_directory() as second:
            assert {entry.name for entry in top.iterdir()} == {Path(first).name, Path(second).name}
            assert (os.listdir(second), Path(second).stat().st_mode & 0o777, Path(second).parent) == ([], 0o700, top)
    assert os.listdir(top) == []


def test_a_directory_that_others_can_write_to_is_refused() -> None:
    top = config.state_directory() / "servers"
    top.mkdir(exist_ok=True)
    top.chmod(0o777)
    try:
        with pytest.raises(PermissionError, match="writable by other users"), empty_directory():
            pass
    finally:
        top.chmod(0o700)


@pytest.mark.slow
async def test_a_server_starts_in_an_empty_directory_that_goes_with_it(nothing_left_behind: None) -> None:
    given = parse_params("s", {"command": sys.executable, "args": [HOSTILE, "good"]})
    async with Servers(lambda name: given, environment=os.environ) as servers:
        cwd = json.loads((await servers.call("s", "env", {})).text)["cwd"]
        assert (Path(cwd).parent, os.listdir(cwd)) == (config.state_directory() / "servers", [])
    assert not os.path.exists(cwd)
    missing = parse_params("s", {"command": "no-such-program"})
    async with Servers(lambda name: missing, environment=os.environ) as servers:
        with pytest.raises(McpServerError, match="no-such-program"):
            await servers.list_tools("s")
    assert os.listdir(config.state_directory() / "servers") == []


@pytest.mark.slow
async def test_a_module_in_the_workspace_is_not_the_server(
    nothing_left_behind: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "mcp_server_time.py").write_text(f"open({str(ran)!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    python: dict[str, Any] = {"command": sys.executable, "args": ["-m", "mcp_server_time", "--local-timezone", "UTC"]}
    registry = ServerRegistry(tmp_path / "state")
    try:
        assert len(await generate_mcp_sources("time", python, tmp_path / "mcptools", registry=registry)) == 2
    finally:
        registry.close()
    assert not ran.exists()


@pytest.mark.slow
async def test_relative_arguments_and_a_script_beside_the_caller_work(
    nothing_left_behind: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "server.py").write_text(Path(HOSTILE).read_text())
    monkeypatch.chdir(tmp_path)
    registry = ServerRegistry(tmp_path / "state")
    try:
        await generate_mcp_sources(
            "s", {"command": sys.executable, "args": ["server.py", "good"]}, "mcptools", registry=registry
        )
        assert registry.get("s").to_dict()["args"] == [f"{tmp_path}/server.py", "good"]
    finally:
        registry.close()
    assert f"{tmp_path}/server.py" in caplog.text
