"""`cellblock tools`, with a real server."""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from cellblock.fronts.cli import main, tools
from oauth_servers import OAuthServer, oauth_server

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
        (["x", "--url", "http://127.0.0.1:1/"], "options come before NAME: cellblock tools add --url … x"),
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


@contextmanager
def visiting(server: OAuthServer) -> Iterator[None]:
    """Have a person log in at once on each page that is opened in the browser."""

    def browse(url: str) -> bool:
        threading.Thread(target=lambda: urlopen(server.visit(url)).close()).start()
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webbrowser, "open", browse)
        yield


def test_the_guide_logs_in_to_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[3] / "docs" / "keys.md").read_text()
    commands = text.partition("```sh\n")[2].partition("```")[0]
    with oauth_server() as server, visiting(server):
        add, login = (shlex.split(line)[1:] for line in commands.replace("https://mcp.example/mcp", server.url).splitlines())
        assert main(add) == 4
        assert "'tickets' needs a login: cellblock tools login tickets" in capsys.readouterr().err
        assert main(login) == 0
        assert Path("mcptools/tickets/add.py").exists()


def test_a_person_logs_in_and_out(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with oauth_server() as server, visiting(server):
        assert main(["tools", "add", "--url", server.url, "it"]) == 4
        assert capsys.readouterr().err == "cellblock: 'it' needs a login: cellblock tools login it\n"
        assert main(["tools", "auth", "it"]) == 1
        assert capsys.readouterr().err == "cellblock: 'it' needs a login: cellblock tools login it\n"
        assert main(["tools", "login", "it"]) == 0
        said = capsys.readouterr()
        assert "Log in on this page, in a browser on this machine" in said.err
        assert json.loads(said.out)["modules"] == ["add"]
        assert Path("mcptools/it/add.py").exists()
        assert main(["tools", "auth", "it"]) == 0
        shown = capsys.readouterr().out
        assert json.loads(shown)["scopes"] == ["read"]
        assert "access-" not in shown
        assert main(["tools", "logout", "it"]) == 0
        assert main(["tools", "logout", "it"]) == 1

        reader, writer = os.pipe()
        monkeypatch.setattr(tools, "say", lambda text: os.write(writer, paste(text)))

        def paste(text: str) -> bytes:
            """Return the line that a person pastes after a line of the command."""
            return f"{server.visit(text.partition(': ')[2])}\n".encode() if text.startswith("Log in on") else b""

        with os.fdopen(reader) as pasted:
            monkeypatch.setattr(sys, "stdin", pasted)
            assert main(["tools", "login", "--no-browser", "it"]) == 0
        os.close(writer)
        assert '"server": "it"' in capsys.readouterr().out
        assert main(["tools", "remove", "it"]) == 0
        assert not [*Path("state/logins").glob("*.json")]
        assert main(["tools", "login", "it"]) == 2


def test_programs_have_no_login(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "add", "clock", "--", sys.executable, "-m", "mcp_server_time"]) == 0
    assert main(["tools", "login", "clock"]) == 2
    assert "MCP server 'clock' has no login: it is a program, or has the header Authorization" in capsys.readouterr().err
