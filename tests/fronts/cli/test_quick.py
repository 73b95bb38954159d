"""What is read by hand means what typer reads in it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cellblock.fronts.cli import app, execute, main, serve_mcp
from cellblock.fronts.cli.quick import plain

LINES = [
    ["--name", "a", "1"],
    ["--name=a", "1"],
    ["1", "--name", "a"],
    ["--id", "a", "--bash", "echo"],
    ["--name", "a", "--timeout", "3", "1"],
    ["--name", "a", "--timeout=-3", "1"],
    ["--name", "a", "--file", "f.py"],
    ["--name", "a", "--json", "-"],
    ["--name", "a", "--name", "b", "1"],
    ["--name", "", "1"],
    ["--name", "--bash", "1"],
    ["a", "1"],
    ["--bash", "a", "-"],
    ["--name", "a", "x = '--bash'"],
    ["--name", "a"],
    ["a", "--file", "f.py"],
    ["1 + 1"],
    ["a", "--for-model", "1"],
    ["--id", "a", "--for-model", "1"],
    [],
]


MCP_LINES = [
    [],
    ["--workspace", "a"],
    ["--workspace=a", "--approve", "ask", "--rules", "r.toml"],
    ["--workspace", ".", "--no-sandbox", "--approve-shell-cmds"],
    ["--allow-host", "a", "--allow-host=b", "--preload", "numpy"],
    ["--sandbox-config", "s.json", "--isolate", "landlock", "--environment", "data"],
    ["--memory", "2G", "--read", "a", "--read=b", "--write", "c"],
    ["--workspace", "a", "--workspace", "b"],
    ["--transport=http", "--host", "::1", "--no-auth", "--allow-name", "a", "--session", "b", "--token", "c"],
]


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_both_read_the_same(line: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = read_twice("exec", execute, line, monkeypatch)
    assert quick == slow


@pytest.mark.parametrize("line", MCP_LINES, ids=" ".join)
def test_both_read_the_same_for_mcp(line: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = read_twice("mcp", serve_mcp, line, monkeypatch)
    _, defaults = read_twice("mcp", serve_mcp, [], monkeypatch)
    assert {**defaults, **{name: Path(value) if name in PATHS else value for name, value in quick.items()}} == slow


PATHS = ("workspace", "rules", "sandbox_config")


def read_twice(
    command: str, module: ModuleType, line: list[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is understood of a line by hand and by typer, without what says nothing."""
    seen: list[dict[str, Any]] = []

    def run(**given: Any) -> int:
        seen.append(
            {name: value for name, value in given.items() if value is not None and (value is not False or name == "sandbox")}
        )
        return 0

    monkeypatch.setattr(module, "run", run)
    assert main([command, *line]) == 0
    assert plain(command, line) is not None
    assert app.run([command, *line]) == 0
    return seen[0], seen[1]


def test_everything_else_is_left_to_typer() -> None:
    cases: list[tuple[str, list[str]]] = [
        ("exec", ["--help"]),
        ("exec", ["-h"]),
        ("exec", ["--nmae", "a", "1"]),
        ("exec", ["--name", "a", "-f", "x.py"]),
        ("exec", ["--name"]),
        ("exec", ["--name", "a", "1", "2"]),
        ("exec", ["1", "2", "--name", "a"]),
        ("exec", ["--id", "a", "1", "2"]),
        ("exec", ["a", "1", "2"]),
        ("exec", ["--", "1"]),
        ("mcp", ["--help"]),
        ("mcp", ["workspace"]),
        ("mcp", ["-"]),
        ("mcp", ["--workspace"]),
        ("mcp", ["--workspace", ""]),
        ("mcp", ["--approve", "all"]),
        ("mcp", ["--transport", "tcp"]),
        ("mcp", ["--port", "1"]),
        ("mcp", ["--sandbox", "--workspace", "a"]),
        ("list", []),
    ]
    for command, line in cases:
        assert plain(command, line) is None
