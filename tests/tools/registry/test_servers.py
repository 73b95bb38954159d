"""The registry of servers: what is registered is there for every process, and nothing else is."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellblock import InvalidInputError, StoreError
from cellblock.common import config
from cellblock.tools.mcp.params import parse_params
from cellblock.tools.registry.servers import ServerRegistry

TIME = parse_params("time", {"command": "mcp-server-time", "env": {"KEY": "${KEY}"}})
GITHUB = parse_params("github", {"url": "https://h/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}})


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[ServerRegistry]:
    registry = ServerRegistry(tmp_path / "state")
    yield registry
    registry.close()


def test_what_is_registered_is_there(registry: ServerRegistry, tmp_path: Path) -> None:
    assert registry.names() == []
    registry.register("time", TIME, "hash 1")
    registry.register("github", GITHUB, "hash 2")
    for seen in (registry, ServerRegistry(tmp_path / "state")):
        assert seen.names() == ["github", "time"]
        assert (seen.get("time"), seen.get("github")) == (TIME, GITHUB)


def test_registering_again_replaces(registry: ServerRegistry) -> None:
    registry.register("x", TIME, "1")
    registry.register("x", GITHUB, "2")
    assert (registry.names(), registry.get("x")) == (["x"], GITHUB)


def test_what_a_server_says_of_its_tools_is_kept_for_each_root_and_replaced(registry: ServerRegistry) -> None:
    registry.register("x", TIME, "1", "/a", {"read": {"a": "1"}, "write": {"a": "2"}})
    registry.register("x", TIME, "1", "/b")
    assert registry.facts("x", "/a", "read") == {"a": "1"}
    assert registry.facts("x", "/a", "write") == {"a": "2"}
    assert registry.facts("x", "/a", "other") == {}  # it was not there
    for unknown in (("x", "/b", "read"), ("y", "/a", "read")):
        assert registry.facts(*unknown) is None
    registry.register("x", TIME, "1", "/a", {"write": {"a": "3"}})
    assert (registry.facts("x", "/a", "read"), registry.facts("x", "/a", "write")) == ({}, {"a": "3"})
    registry.remove("x")
    registry.register("x", TIME, "1", "/a")
    assert registry.facts("x", "/a", "write") is None


def test_each_workspace_has_the_servers_whose_apis_lie_in_it(registry: ServerRegistry) -> None:
    registry.register("x", TIME, "1", "/a/tools")
    registry.register("x", GITHUB, "2", "/b")
    assert registry.names() == ["x"]
    assert registry.root_within("x", "/a") == registry.root_within("x", "/a/tools") == "/a/tools"
    assert registry.root_within("x", "/b") == "/b"
    assert registry.root_within("x", "/") == "/b"  # the last
    for elsewhere in ("/a/tool", "/c", "/a/tools/below"):
        assert registry.root_within("x", elsewhere) is None
    assert (registry.get("x", "/a/tools"), registry.get("x", "/b"), registry.get("x")) == (TIME, GITHUB, GITHUB)
    with pytest.raises(InvalidInputError):
        registry.get("x", "/c")


def test_a_look_sees_what_others_have_done_since_the_last_one(registry: ServerRegistry, tmp_path: Path) -> None:
    other = ServerRegistry(tmp_path / "state")
    assert registry.root_within("x", "/a") is None
    other.register("x", TIME, "", "/a/one")
    assert registry.root_within("x", "/a") == "/a/one"
    other.register("x", TIME, "", "/a/two")
    assert registry.root_within("x", "/a") == "/a/two"
    other.remove("x")
    assert registry.root_within("x", "/a") is None
    registry.close()
    other.register("x", TIME, "", "/a/one")
    assert registry.root_within("x", "/a") == "/a/one"  # opened again


def test_a_server_without_a_root_is_everybodys(registry: ServerRegistry) -> None:
    registry.register("x", TIME, "")
    assert registry.root_within("x", "/anywhere") == ""
    assert registry.root_within("y", "/anywhere") is None


def test_a_server_that_is_not_registered_is_named(registry: ServerRegistry) -> None:
    registry.register("time", TIME, "")
    registry.remove("time")
    for ask in (registry.get, registry.remove):
        with pytest.raises(InvalidInputError, match="no MCP server is registered as 'time'"):
            ask("time")


@pytest.mark.parametrize("name", ["", "x" * 257, None, 3])
def test_a_name_that_is_none_is_refused(registry: ServerRegistry, name: str) -> None:
    with pytest.raises(InvalidInputError, match="name of an MCP server"):
        registry.register(name, TIME, "")


def test_a_name_is_no_sql(registry: ServerRegistry) -> None:
    name = "x'; DROP TABLE servers; --"
    registry.register(name, TIME, "")
    assert registry.names() == [name]
    assert registry.get(name) == TIME


def test_what_is_damaged_is_told(registry: ServerRegistry, tmp_path: Path) -> None:
    registry.register("time", TIME, "")
    with sqlite3.connect(tmp_path / "state" / "servers.db") as connection:
        connection.execute("""UPDATE servers SET params = '{"command": 3}'""")
    connection.close()
    with pytest.raises(StoreError, match="'time' is damaged: register it again"):
        registry.get("time")


@pytest.mark.slow
def test_processes_register_at_the_same_time(tmp_path: Path) -> None:
    program = f"""
import sys
from collections.abc import Iterator
from pathlib import Path
from cellblock.tools.registry.servers import ServerRegistry
from cellblock.tools.mcp.params import StdioServer
for number in range(25):
    ServerRegistry(Path({str(tmp_path / "state")!r})).register(f"{{sys.argv[1]}}-{{number}}", StdioServer("x"), "")
"""
    running = [subprocess.Popen([sys.executable, "-c", program, str(number)]) for number in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    assert len(ServerRegistry(tmp_path / "state").names()) == 100


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"CELLBLOCK_HOME": "/a/b"}, "/a/b"),
        ({"CELLBLOCK_HOME": "/a/b", "XDG_STATE_HOME": "/c"}, "/a/b"),
        ({"XDG_STATE_HOME": "/c"}, "/c/cellblock"),
        ({"CELLBLOCK_HOME": ""}, "/home/x/.local/state/cellblock"),
    ],
)
def test_where_state_is_kept(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str) -> None:
    for name in ("CELLBLOCK_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": "/home/x"} | environment).items():
        monkeypatch.setenv(name, value)
    assert config.state_directory() == Path(expected)


def test_the_registry_is_where_state_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "home"))
    ServerRegistry().register("time", TIME, "")
    assert (tmp_path / "home" / "servers.db").exists()
