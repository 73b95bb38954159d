"""`cellblock exec` in a terminal: output as it comes, questions, Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

import cellblock
from cellblock.fronts.cli import live, main
from cli_runs import run_here
from terminals import cellblock as command
from terminals import terminal

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("daemon")]


def test_output_is_shown_as_it_comes_and_nothing_in_it_steers_the_terminal() -> None:
    code = "import time; print('first', flush=True); input('go on? '); print('\\x1b]0;title\\x07 and \\x9b31m'); 40 + 2"
    with terminal(*command("exec", "--name", "shown", code)) as screen:
        screen.wait_for("first")
        screen.wait_for("go on? ")
        screen.enter("yes")
        screen.wait_for("\\x1b]0;title\\x07 and \\x9b31m")
        screen.wait_for("42")
        assert screen.end() == 0
    assert screen.text.count("yes") == 1  # what the terminal has shown is not shown again
    assert "\x1b]" not in screen.raw
    assert "\x9b" not in screen.raw


def test_ctrl_c_interrupts_the_cell_and_leaves_the_session() -> None:
    with terminal(*command("exec", "--name", "stopped", "kept = 1; print('begun', flush=True)\nwhile True: pass")) as screen:
        screen.wait_for("begun")
        screen.type("\x03")
        screen.wait_for("KeyboardInterrupt: The cell was interrupted (by an interrupt). Variables are kept.")
        assert screen.end() == 130
    assert cellblock.execute("stopped", "kept").return_value == "1"


def test_who_waits_for_other_code_learns_how_to_stop_it() -> None:
    with terminal(*command("exec", "--name", "busy", "print('begun', flush=True)\nwhile True: pass")) as first:
        first.wait_for("begun")
        with terminal(*command("exec", "--name", "busy", "6 * 7"), columns=150) as second:
            second.wait_for("waiting for other code in busy ('cellblock interrupt busy' stops it)")
            assert main(["interrupt", "busy"]) == 0
            assert second.end() == 0
            assert "42" in second.text
        assert first.end() == 130


def test_who_waits_for_code_that_waits_for_a_decision_learns_where_to_see_it() -> None:
    cellblock.get_or_create("asks", approve_shell_cmds=True)
    with terminal(*command("exec", "--name", "asks", "!echo done")) as first:
        first.wait_for("echo done")
        with terminal(*command("exec", "--name", "asks", "6 * 7"), columns=150) as second:
            second.wait_for("waiting for code in asks that waits for a decision ('cellblock approvals pending' lists it)")
            assert main(["interrupt", "asks"]) == 0
            assert second.end() == 0
        first.end()


def test_nothing_is_said_twice() -> None:
    cases: list[tuple[str, str | None, str]] = [
        ("interrupted", "interrupted", ""),
        ("interrupted", "restarted", ""),  # the error says it
        ("timeout", "interrupted", "stopped at its timeout (--timeout SECONDS allows more)"),
        ("success", "restarted", "its earlier kernel had ended; a fresh kernel without variables runs now"),
        ("success", None, ""),
    ]
    for status, recovery, note in cases:
        assert live.note_on({"status": status, "recovery": recovery, "not_undoable": "", "text": None}) == note


def test_a_cell_that_cannot_be_undone_says_so_once() -> None:
    code = "import threading; go = threading.Event(); threading.Thread(target=go.wait, daemon=True).start()"
    run_here("exec", "threads", code)
    shown = [run_here("exec", "threads", "1") for _ in range(2)]
    assert ["this cell cannot be undone: the thread" in done.stderr for done in shown] == [True, False]


def test_a_picture_is_saved_and_named() -> None:
    code = "from IPython.display import Image, display; display(Image(b'\\x89PNG\\r\\n\\x1a\\n' + b'x' * 30))"
    with terminal(*command("exec", "--name", "pictures", code), columns=300) as screen:
        screen.wait_for("picture: ")
        assert screen.end() == 0
    path = screen.text.partition("picture: ")[2].split()[0]
    assert Path(path).read_bytes().startswith(b"\x89PNG")
    assert Path(path).parent == Path.cwd() / "images"


def test_ctrl_c_works_while_the_main_thread_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it comes right before a system call: Python's own handler waits for the end of that."""
    asked = threading.Event()
    monkeypatch.setattr(live, "_cancel", lambda execution: asked.set())
    with live._Interrupts() as interrupts:
        interrupts.stop_by("one")
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # so that another thread takes it
        try:
            os.kill(os.getpid(), signal.SIGINT)
            assert asked.wait(10)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    assert signal.set_wakeup_fd(-1) == -1
