"""`generate_mcp_sources` with the real servers."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import InvalidInputError, McpServerError, generate_mcp_sources
from cellblock.tools.registry.servers import ServerRegistry
from tool_sessions import servers_below

from .generated import check_types, importable

BIN = Path(sys.executable).parent
TIME: dict[str, Any] = {"command": str(BIN / "mcp-server-time"), "args": ["--local-timezone", "UTC"]}


@pytest.fixture
def registry(nothing_left_behind: None, tmp_path: Path) -> Iterator[ServerRegistry]:
    """An empty registry."""
    registry = ServerRegistry(tmp_path / "state")
    yield registry
    registry.close()


def check_modules(root: Path, server: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Import every module, and make and dump what can be made of it."""
    with importable(root, monkeypatch):
        for name in names:
            module = importlib.import_module(f"{root.name}.{server}.{name}")
            module.Params.model_json_schema()
            assert "allows more" not in (module.run.__doc__ or ""), name
            assert callable(module.run_async)


@pytest.mark.slow
async def test_the_time_server(tmp_path: Path, registry: ServerRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    progress: list[tuple[int, int]] = []
    root = tmp_path / "mcptools"
    names = await generate_mcp_sources("time", TIME, root, registry=registry, on_progress=lambda *done: progress.append(done))
    assert sorted(names) == ["convert_time", "get_current_time"]
    assert progress == [(1, 2), (2, 2)]
    assert registry.get("time").to_dict()["command"] == TIME["command"]
    assert registry.root_within("time", str(tmp_path)) == str(root)
    assert registry.root_within("time", str(tmp_path / "elsewhere")) is None
    for path in (root / "time").iterdir():
        assert "mcp-server-time" not in path.read_text(), "parameters stay on the trusted side"
    with importable(root, monkeypatch) as runner:
        tool = importlib.import_module("mcptools.time.get_current_time")
        runner.answer = {
            "timezone": "UTC",
            "datetime": "2026-01-01T00:00:00+00:00",
            "day_of_week": "Thursday",
            "is_dst": False,
        }
        assert tool.run(tool.Params(timezone="UTC")).timezone == "UTC"
        assert runner.calls == [("time", "get_current_time", {"timezone": "UTC"})]
    check_modules(root, "time", names, monkeypatch)
    check_types(root)


@pytest.mark.slow
async def test_the_git_server_again_and_again(
    tmp_path: Path, registry: ServerRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", tmp_path / "repository"], check=True)
    params = {"command": str(BIN / "mcp-server-git"), "args": ["--repository", "${REPOSITORY}"]}
    monkeypatch.setenv("REPOSITORY", str(tmp_path / "repository"))
    root = tmp_path / "mcptools"
    names = await generate_mcp_sources("git", params, root, registry=registry)
    assert len(names) == 12
    written = {path: path.stat().st_ino for path in (root / "git").iterdir()}
    assert await generate_mcp_sources("git", params, root, registry=registry) == names
    assert {path: path.stat().st_ino for path in (root / "git").iterdir()} == written
    assert registry.get("git").to_dict()["args"] == ["--repository", "${REPOSITORY}"], "the variable, not its value"
    check_modules(root, "git", names, monkeypatch)
    check_types(root)


@pytest.mark.npm
@pytest.mark.parametrize(
    ("server", "args", "count"), [("filesystem", ["{tmp}"], 14), ("everything", ["stdio"], 13), ("memory", [], 9)]
)
async def test_servers_from_npm(
    server: str, args: list[str], count: int, tmp_path: Path, registry: ServerRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "mcptools"
    params = {
        "command": f"mcp-server-{server}",
        "args": [arg.format(tmp=tmp_path) for arg in args],
        "env": {"MEMORY_FILE_PATH": str(tmp_path / "memory.json")},
    }
    names = await generate_mcp_sources(server, params, root, registry=registry)
    assert len(names) >= count  # some tools are there for clients that can do more
    check_modules(root, server, names, monkeypatch)
    check_types(root)


@pytest.mark.slow
async def test_the_root_of_a_server_is_where_its_api_lies_whatever_leads_there(
    tmp_path: Path, registry: ServerRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "link").symlink_to("project")
    monkeypatch.chdir(tmp_path)
    await generate_mcp_sources("time", TIME, "link/mcptools", registry=registry)
    assert registry.root_within("time", str(tmp_path / "project")) == str(tmp_path / "project" / "mcptools")
    assert registry.root_within("time", str(tmp_path / "link")) is None


async def test_a_name_that_no_package_can_have_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="server_name"):
        await generate_mcp_sources("my-server", {"command": "/bin/false"}, tmp_path / "mcptools")
    assert not (tmp_path / "mcptools").exists()


async def test_a_server_that_does_not_start_leaves_no_package(tmp_path: Path, registry: ServerRegistry) -> None:
    with pytest.raises(McpServerError, match=r"broken.*(ended|exited)"):
        await generate_mcp_sources("broken", {"command": "/bin/false"}, tmp_path / "mcptools", registry=registry)
    assert not (tmp_path / "mcptools").exists()
    assert registry.names() == []


@pytest.mark.slow
async def test_the_package_is_written_while_the_server_ends(tmp_path: Path, registry: ServerRegistry) -> None:
    stubborn = {
        "command": sys.executable,
        "args": [str(Path(__file__).parents[2] / "servers" / "hostile_server.py"), "stubborn"],
    }
    running: list[set[int]] = []
    names = await generate_mcp_sources(
        "stubborn",
        stubborn,
        tmp_path / "mcptools",
        registry=registry,
        on_progress=lambda done, total: running.append(servers_below(os.getpid())),
    )
    assert all(running)
    assert len(running) == len(names)
    assert servers_below(os.getpid()) == set()


@pytest.mark.slow
async def test_a_server_whose_package_cannot_be_written_is_not_registered(tmp_path: Path, registry: ServerRegistry) -> None:
    (tmp_path / "mcptools" / "time").mkdir(parents=True)
    (tmp_path / "mcptools" / "time" / "mine.txt").write_text("x")
    with pytest.raises(InvalidInputError, match="was not generated"):
        await generate_mcp_sources("time", TIME, tmp_path / "mcptools", registry=registry)
    assert registry.names() == []


async def test_tools_that_need_a_task_are_left_out(
    tmp_path: Path, registry: ServerRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    server = str(Path(__file__).parents[2] / "servers" / "hostile_server.py")
    params = {"command": sys.executable, "args": [server, "tasks"]}
    assert await generate_mcp_sources("tasks", params, tmp_path / "mcptools", registry=registry) == ["echo", "hang"]
    assert "it requires a call as a task" in caplog.text
