"""`cellblock approvals`: deciding from another terminal."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cellblock
from cellblock.errors import DaemonError
from cellblock.fronts.cli import approval_commands, main, output
from cellblock.model.decisions import Decision
from cellblock.tools.registry.approvals import Approvals
from daemons import own_daemon
from processes import eventually
from terminals import cellblock as command
from terminals import terminal
from tool_sessions import ASK, register

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with own_daemon(tmp_path_factory.mktemp("daemon")) as home:
        cellblock.get_or_create("a", approve_shell_cmds=True)
        yield home


def pending(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["approvals", "pending"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["pending"]
    return found


def waiting(line: str, session: str = "a") -> subprocess.Popen[str]:
    """Run a cell, which waits for a decision."""
    return subprocess.Popen(
        command("exec", "--name", session, line), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


async def test_a_call_is_allowed_from_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    process = waiting("!echo ran")
    await eventually(lambda: bool(pending(capsys)))
    (waits,) = pending(capsys)
    assert "echo ran" in waits["text"]
    assert main(["approvals", "allow", waits["id"][:8]]) == 0
    assert json.loads(capsys.readouterr().out) == {"decided": [waits["id"]]}
    out, err = process.communicate(timeout=30)
    assert json.loads(out)["output"] == "ran\n"
    assert f"cellblock approvals allow {waits['id']}" in err


async def test_what_waits_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """In a narrow terminal, too: what is decided about stands there."""
    line = f"!echo {'harmless ' * 60}{' ' * 300}; echo the end"
    process = waiting(line)
    await eventually(lambda: bool(pending(capsys)))
    with terminal(*command("approvals", "pending"), columns=40) as screen:
        assert screen.end() == 0
    shown = "".join(screen.text.split("\r\n"))
    assert "harmless[301 spaces]; echo the end" in shown
    assert shown.count("harmless") == 60
    assert main(["approvals", "deny", "--all"]) == 0
    process.communicate(timeout=30)


async def test_all_that_waits_is_denied(capsys: pytest.CaptureFixture[str]) -> None:
    process = waiting("!echo ran")
    await eventually(lambda: bool(pending(capsys)))
    with terminal(*command("approvals", "pending"), columns=200) as screen:
        screen.wait_for("echo ran")
        assert screen.end() == 0
    assert main(["approvals", "deny", "--all"]) == 0
    assert "decided" in capsys.readouterr().out
    out, _ = process.communicate(timeout=30)
    assert "not approved" in out
    assert pending(capsys) == []
    assert main(["approvals", "list", "--session", "a", "--last", "1"]) == 0
    (decision,) = json.loads(capsys.readouterr().out)
    assert (decision["session_name"], decision["outcome"]) == ("a", "deny")
    assert decision["session"] == cellblock.get_or_create("a").kernel_id
    with terminal(*command("approvals", "list"), columns=200) as screen:
        screen.wait_for("  a  deny")
        assert screen.end() == 0


async def test_decisions_that_are_not_shown_whole_say_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = {"long": f"{'x' * 300} rm", "blanks": f"echo{' ' * 5000}; rm", "huge": "y" * 200_000}
    with Approvals() as trail:
        for name, command_line in lines.items():
            payload = json.dumps({"command": command_line}).encode()
            await trail.add(Decision("allow", "person", "of this test", "shell", "shell", name, payload, time.time(), ""))
    assert main(["approvals", "list", "--session", "of this test"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [decision["complete"] for decision in found] == [True, True, False]
    assert json.loads(found[0]["arguments"])["command"] == lines["long"]
    monkeypatch.setattr(output, "wants_json", bool)
    assert main(["approvals", "list", "--session", "of this test"]) == 0
    long, blanks, huge = capsys.readouterr().out.splitlines()
    assert "x… [" in long
    assert "more characters: --json shows them]" in long
    assert "echo[5,000 spaces]; rm" in blanks
    assert "only the beginning of its arguments is on record]" in huge


def test_decisions_are_listed_without_a_daemon_to_ask_for_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_another_version() -> None:
        raise DaemonError("it is of another version")

    monkeypatch.setattr(approval_commands, "open_if_running", of_another_version)
    assert main(["approvals", "list"]) == 0
    assert {decision["session_name"] for decision in json.loads(capsys.readouterr().out)} <= {""}


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["allow"], 2, "name the requests by ids from 'cellblock approvals pending', or pass --all"),
        (["allow", "x", "--all"], 2, "name the requests by ids"),
        (["deny", "0000"], 1, "not waiting: 0000 (see 'cellblock approvals pending')"),
        (["allow", "0000", "--always", "ever"], 2, "always must be 'tool' or 'call'"),
    ],
)
def test_what_cannot_be_decided_is_said(
    arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["approvals", *arguments]) == status
    assert capsys.readouterr().err.startswith(f"cellblock: {said}")


async def test_what_a_server_asks_is_answered_from_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    register(tmp_path)
    cellblock.get_or_create("asks", working_dir=tmp_path, approve_tool_calls=False)
    process = waiting(ASK, "asks")
    await eventually(lambda: bool(pending(capsys)), 60)  # the MCP server has to start
    (waits,) = pending(capsys)
    with terminal(*command("approvals", "pending"), columns=200) as screen:
        screen.wait_for("May I? (yes: boolean")
        assert screen.end() == 0
    assert main(["approvals", "allow", "--all"]) == 0
    assert json.loads(capsys.readouterr().out) == {"decided": []}
    for wrong, status in (("nonsense", 2), ('{"yes": 5}', 2), ("[]", 2)):
        assert main(["approvals", "allow", waits["id"], "--answer", wrong]) == status
    capsys.readouterr()
    assert main(["approvals", "allow", waits["id"], "--answer", '{"yes": false}']) == 0
    out, err = process.communicate(timeout=30)
    assert '{"action": "accept", "content": {"yes": false}}' in json.loads(out)["output"]
    assert f"cellblock approvals allow {waits['id']} --answer JSON" in err


def test_what_a_server_asks_is_answered_in_the_terminal(tmp_path: Path) -> None:
    register(tmp_path)
    cellblock.get_or_create("typed", working_dir=tmp_path, approve_tool_calls=False)
    for typed, said in (("yes", '"content": {"yes": true}'), ("", '"action": "decline"')):
        with terminal(*command("exec", "--name", "typed", ASK)) as screen:
            screen.wait_for("question: MCP server 'bad' asks: May I?")
            screen.wait_for("nothing to refuse > ")
            if typed:
                screen.enter("perhaps")
                screen.wait_for("it takes a value of the type boolean")
                screen.wait_for("nothing to refuse > ")  # what was typed before is forgotten
            screen.enter(typed)
            screen.wait_for(said)
            assert screen.end() == 0
