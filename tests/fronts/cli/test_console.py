"""`cellblock attach`, in a terminal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

import cellblock
from cellblock.fronts.cli import console, live
from terminals import Screen, terminal
from terminals import cellblock as command

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("daemon")]


@pytest.fixture
def screen() -> Iterator[Screen]:
    with terminal(*command("attach", "console"), columns=120) as screen:
        screen.wait_for("Ctrl-D leaves it")
        screen.wait_for("In [1]:")
        yield screen
        screen.type("\x04")
        assert screen.end() == 0
        assert "session 'console' keeps running" in screen.text


def test_a_dialogue(screen: Screen) -> None:
    """One console for all of it: it takes a second to start."""
    screen.enter("for number in range(2):")
    screen.wait_for("...:")
    screen.enter("print('number', number)")  # indented by the console
    screen.enter("")
    screen.wait_for("number 0")
    screen.wait_for("number 1")

    screen.enter("wait_here = 'hel' + 'lo'; wait_here")
    screen.wait_for("Out[2]: 'hello'")

    screen.type("wait_h\t")
    screen.wait_for("ere")
    screen.enter(".upper()")
    screen.wait_for("Out[3]: 'HELLO'")

    screen.enter("input('na' 'me? ') * 2")
    screen.wait_for("name? ")
    screen.enter("ab")
    screen.wait_for("Out[4]: 'abab'")

    screen.enter("import time; print('be' 'gun', flush=True); time.sleep(100)")
    screen.wait_for("begun")
    screen.type("\x03")
    screen.wait_for("KeyboardInterrupt")
    screen.wait_for("In [6]:")

    screen.type("half a li\x03")
    screen.enter("%who_ls str")
    screen.wait_for("'wait_here'")

    screen.enter("1 / 0")
    screen.wait_for("ZeroDivisionError")
    screen.enter("print('\\x1b]0;title\\x07')")
    screen.wait_for("\\x1b]0;title\\x07\r\n")
    screen.wait_for("In [9]:")  # what is typed before the console reads is an end of input for nobody
    assert cellblock.execute("console", "wait_here").return_value == "'hello'"


def test_the_history_of_the_session_is_there() -> None:
    cellblock.execute(cellblock.get_or_create("told"), "'from else' 'where'")
    with terminal(*command("attach", "told")) as screen:
        screen.wait_for("In [2]:")
        screen.type("\x1b[A")
        screen.wait_for("'from else' 'where'")
        screen.enter()
        screen.wait_for("Out[2]: 'from elsewhere'")
        screen.enter("exit")
        assert screen.end() == 0


def test_a_session_that_others_use_too() -> None:
    shared = cellblock.get_or_create("shared")
    with terminal(*command("attach", "shared"), columns=120) as screen:
        screen.wait_for("In [1]:")
        cellblock.execute(shared, "'of somebody else'")
        screen.enter("6 * 7")
        screen.wait_for("Out[2]: 42")  # the cell's number, and not the one that the prompt has shown
        screen.wait_for("In [3]:")
        with terminal(*command("exec", "--name", "shared", "print('be' 'gun', flush=True)\nwhile True: pass")) as other:
            other.wait_for("begun")
            screen.enter("ran = True")
            screen.wait_for("waiting for other code")
            screen.type("\x03")
            screen.wait_for("nothing was run")  # and no word about a fresh kernel, which would end what the other one runs
            screen.wait_for("In [3]:")
            other.type("\x03")
            assert other.end() == 130
        screen.enter("input('na' 'me? ')")
        screen.wait_for("name? ")
        screen.type("\x03")
        assert screen.wait_for("-----").endswith("\r\n")
        screen.wait_for("KeyboardInterrupt: ")
        screen.wait_for("In [5]:")
        assert cellblock.execute(shared, "'ran' in globals()").return_value == "False"
        cellblock.destroy(shared)
        screen.enter("1")
        screen.wait_for("session 'shared' was ended by another client")
        assert screen.end() == 1


def test_who_leaves_a_cell_that_does_not_stop_learns_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(*_: object) -> None:
        raise KeyboardInterrupt  # the third Ctrl-C

    monkeypatch.setattr(live, "follow", leave)
    attached = console._Console("told")
    attached._execute("1")
    attached.close()
    assert "'cellblock restart told' gives the session a fresh kernel" in capsys.readouterr().err


def test_numbers_begin_again_after_a_restart_and_interrupts_at_the_prompt_are_silent() -> None:
    with terminal(*command("attach", "again"), columns=120) as screen:
        screen.wait_for("In [1]:")
        screen.enter("1 + 1")
        screen.wait_for("In [2]:")
        screen.type("\x03")
        screen.wait_for("In [2]:")
        os.kill(screen.process.pid, signal.SIGINT)
        screen.wait_for("In [2]:")
        screen.type("\x04")
        assert screen.end() == 0
    assert "Traceback" not in screen.text
    cellblock.restart("again")
    with terminal(*command("attach", "again"), columns=120) as screen:
        screen.wait_for("In [1]:")
        screen.type("\x04")
        assert screen.end() == 0
