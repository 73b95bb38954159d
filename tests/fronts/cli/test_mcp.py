"""`cellblock mcp`: its options."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cellblock.fronts.cli import main
from terminals import cellblock as command
from terminals import terminal

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workspace", "/none"], "there is no such directory"),
        (["--workspace", ""], "the path is empty"),
        (["--workspace", __file__], "it is not a directory"),
        (["--approve", "rules"], "--approve rules needs --rules FILE"),
        (["--approve", "sometimes"], "'sometimes' is not one of"),
        (["--transport", "http", "--host", "0.0.0.0", "--no-auth"], "only listen on a loopback address"),
        (["--sandbox", "--no-sandbox"], "not both"),
        (["--tool-server-port", "8900", "--workspace", "/none"], "--tool-server-port has no effect"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workspace", "/usr"], "cannot have /usr as its workspace"),
        (["--allow-host", "http://example.org"], "The egress rule 'http://example.org' is wrong"),
    ],
)
def test_what_no_session_could_have_is_said_at_the_start(arguments: list[str], message: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cellblock", "mcp", *arguments]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr


def test_in_a_terminal_it_says_that_it_waits(tmp_path: Path) -> None:
    with terminal(*command("mcp", "--workspace", str(tmp_path))) as screen:
        screen.wait_for("waits for an MCP client")
        screen.type("\x03")
        assert screen.end() == 130


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            [sys.executable, "-m", "cellblock", "mcp", "--workspace", str(tmp_path), "--transport", "http", "--port", port],
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 2
    assert f"cannot listen at 127.0.0.1:{port}: another program listens there" in ended.stderr


@pytest.mark.parametrize("by", ["option", "variable", "nothing"])
def test_programs_are_offered_if_that_is_wanted(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []

    def run(**options: Any) -> int:
        given.append(options.get("programs", False))
        return 0

    monkeypatch.setattr("cellblock.fronts.cli.serve_mcp.run", run)
    if by == "variable":
        monkeypatch.setenv("CELLBLOCK_MCP_PROGRAMS", "1")
    assert main(["mcp", *(["--programs"] if by == "option" else [])]) == 0
    assert given == [by != "nothing"]
