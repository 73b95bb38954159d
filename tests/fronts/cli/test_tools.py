"""`cellblock tools`, with a real server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cellblock.fronts.cli import main

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def test_a_server_is_added_found_and_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "add", "--env", "A=b", "clock", "--", sys.executable, "-m", "mcp_server_time"]) == 0
    added = json.loads(capsys.readouterr().out)
    assert sorted(added["modules"]) == ["convert_time", "get_current_time"]
    assert main(["tools", "list"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert (listed["servers"], sorted(listed["tools"])) == (["clock"], ["clock.convert_time", "clock.get_current_time"])
    assert main(["tools", "search", "current", "time", "--limit", "1"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["tool"] == "clock.get_current_time"
    assert found["signature"].startswith("clock.get_current_time(")
    assert main(["tools", "search", "submarine"]) == 1
    capsys.readouterr()
    assert main(["tools", "remove", "clock"]) == 0
    assert main(["tools", "remove", "clock"]) == 2
    assert "no MCP server is registered as 'clock'; 'cellblock tools list' shows which are" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x"], "name the server: either -- COMMAND ARGS..., or --url URL"),
        (["--url", "http://127.0.0.1:1/", "x", "--", "program"], "name the server: either"),
        (["--env", "novalue", "x", "--", "program"], "--env takes NAME=VALUE"),
        (["--header", "a=b", "x", "--", "program"], "--header needs --url"),
        (["--sandbox", "--url", "http://127.0.0.1:1/", "x"], "--env and --sandbox are for a server"),
    ],
)
def test_wrong_usage_is_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "add", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"cellblock: {said}")


def test_a_server_that_does_not_start_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "add", "gone", "--", "no-such-program-here"]) == 4
    assert capsys.readouterr().err.startswith("cellblock: MCP server 'gone'")
