"""Lines and decisions that are asked for in the terminal."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import cellblock
from cellblock.fronts.cli import main
from processes import eventually
from terminals import cellblock as command
from terminals import terminal

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("daemon")]


def test_ctrl_c_at_a_question_interrupts_the_cell() -> None:
    with terminal(*command("exec", "--name", "stopped", "input('well? ')")) as screen:
        screen.wait_for("well? ")
        screen.type("\x03")
        assert screen.end() == 130
    assert cellblock.execute("stopped", "1").ok


async def test_a_question_ends_with_the_terminal_that_would_answer_it(tmp_path: Path) -> None:
    cellblock.get_or_create("left", working_dir=tmp_path)
    code = "try:\n    input('well? ')\nexcept EOFError:\n    open('ended', 'w').close()\ninput('more? ')"
    with terminal(*command("exec", "--name", "left", code)) as screen:
        screen.wait_for("well? ")
        screen.process.kill()
        await eventually((tmp_path / "ended").exists)
    assert cellblock.execute("left", "1").ok


def test_the_end_of_input_ends_a_question() -> None:
    with terminal(*command("exec", "--name", "stopped", "input('well? ')")) as screen:
        screen.wait_for("well? ")
        screen.type("\x04")
        screen.wait_for("EOFError")
        assert screen.end() == 1


async def test_a_password_is_not_shown() -> None:
    with terminal(*command("exec", "--name", "stopped", "import getpass; x = getpass.getpass('secret? '); len(x)")) as screen:
        screen.wait_for("secret? ")
        await eventually(lambda: not screen.echoes)
        screen.enter("abracadabra")
        screen.wait_for("11")
        assert screen.end() == 0
    assert "abracadabra" not in screen.text


def test_a_call_that_needs_approval_is_asked_about() -> None:
    cellblock.get_or_create("asked", approve_shell_cmds=True)
    with terminal(*command("exec", "--name", "asked", "!echo it ra''n")) as screen:
        screen.wait_for("command: shell.shell(command=")
        screen.wait_for("allow it? ")
        screen.enter("what")
        screen.wait_for("answer with y, n, c or t")
        screen.wait_for("allow it? ")
        screen.enter("y")
        screen.wait_for("it ran")
        assert screen.end() == 0
    with terminal(*command("exec", "--name", "asked", "!echo it ra''n")) as screen:
        screen.wait_for("allow it? ")
        screen.enter("n")
        screen.wait_for("not approved")
        screen.end()
    assert "it ran" not in screen.text


def test_what_was_typed_before_a_call_was_shown_decides_nothing() -> None:
    cellblock.get_or_create("hasty", approve_shell_cmds=True)
    code = "print('begun', flush=True); import time; time.sleep(0.3)\n!echo it ra''n"
    with terminal(*command("exec", "--name", "hasty", code)) as screen:
        screen.wait_for("begun")
        screen.enter("y")
        screen.wait_for("allow it? ")
        screen.enter("n")
        screen.wait_for("not approved")
        screen.end()
    assert "it ran" not in screen.text


def test_a_call_that_somebody_else_decides_is_not_asked_about_any_more() -> None:
    cellblock.get_or_create("asked", approve_shell_cmds=True)
    with terminal(*command("exec", "--name", "asked", "!echo it ra''n")) as screen:
        screen.wait_for("allow it? ")
        assert main(["approvals", "allow", "--all"]) == 0
        screen.wait_for("it no longer waits: another client has allowed it")
        screen.wait_for("it ran")
        assert screen.end() == 0


def test_ctrl_c_at_a_call_says_that_it_was_cancelled() -> None:
    cellblock.get_or_create("asked", approve_shell_cmds=True)
    with terminal(*command("exec", "--name", "asked", "!echo it ra''n")) as screen:
        screen.wait_for("allow it? ")
        screen.type("\x03")
        screen.wait_for("it no longer waits: the call was cancelled")
        assert screen.end() == 130
    assert "it ran" not in screen.text


def test_lines_of_a_pipe_answer_questions_in_turn() -> None:
    shell = f"printf 'one\ntwo\n' | {shlex.join(command('exec', '--name', 'piped', '[input(), input()]'))}"
    with terminal("sh", "-c", shell) as screen:
        screen.wait_for("['one', 'two']")
        assert screen.end() == 0
