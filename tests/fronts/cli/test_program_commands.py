"""`cellblock sh` and `cellblock processes`, as people and programs use them."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cellblock
from cellblock.fronts.cli import main
from cli_runs import run_here
from processes import eventually
from terminals import cellblock as command
from terminals import terminal

pytestmark = pytest.mark.usefixtures("daemon")

NAP = ["sleep", f"{5000 + os.getpid()}"]


@pytest.fixture(autouse=True)
def session(daemon: Path, tmp_path: Path) -> Iterator[str]:
    """A session in a directory of its own."""
    cellblock.get_or_create("s", working_dir=str(tmp_path))
    yield "s"
    cellblock.wipe()


def sh(*arguments: str, given: bytes = b"") -> tuple[int, bytes, bytes]:
    """Run the command in pipes; return its status, and what it prints."""
    done = subprocess.run(command("sh", *arguments), input=given, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def begun(*arguments: str, **pipes: Any) -> subprocess.Popen[bytes]:
    """Start the command."""
    return subprocess.Popen(command("sh", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **pipes)


def running() -> list[tuple[str, ...]]:
    """Return the commands of the session's programs that run."""
    return [one.command for one in cellblock.processes("s") if one.running]


# -- in pipes ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_input_output_and_status_are_those_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    script = "pwd; cat; echo $A-$B >&2; exit 7"
    done = sh("s", "--cwd", "d", "-e", "A=1", "--env", "B=2", "--", "sh", "-c", script, given=b"in\xff\0")
    assert done == (7, f"{tmp_path}/d\n".encode() + b"in\xff\0", b"1-2\n")
    assert sh("s", "echo", "-n", "$HOME", "a b") == (0, b"$HOME a b", b"")


@pytest.mark.slow
def test_much_goes_in_and_out() -> None:
    data = os.urandom(3_000_000)
    assert sh("s", "--", "cat", given=data) == (0, data, b"")
    assert sh("s", "--", "head", "-c", "10", given=data) == (0, data[:10], b"")


@pytest.mark.slow
def test_statuses_of_what_does_not_run_or_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    status, out, err = sh("s", "--", "no-such-program")
    assert (status, out) == (127, b"")
    assert err == b"cellblock: no-such-program was not started: it cannot be executed: No such file or directory\n"
    assert sh("s", "--", "./text")[0] == 126
    assert sh("s", "--timeout", "0.2", "--", *NAP) == (124, b"", b"cellblock: it was stopped at its time limit\n")
    assert sh("s", "--", "sh", "-c", "kill -SEGV $$") == (139, b"", b"")
    assert running() == []


@pytest.mark.slow
def test_a_time_limit_holds_for_a_program_that_does_not_read() -> None:
    assert sh("s", "--timeout", "0.2", "--", *NAP, given=b"x" * 1_000_000)[0] == 124


@pytest.mark.slow
def test_a_session_that_does_not_exist_is_made(tmp_path: Path) -> None:
    assert sh("new", "--workspace", str(tmp_path), "--", "pwd") == (0, f"{tmp_path}\n".encode(), b"")
    assert sh("newer", "--", "pwd")[:2] == (0, f"{cellblock.status('newer').workspace}\n".encode())


@pytest.mark.slow
async def test_ctrl_c_is_passed_on_and_the_second_one_stops_the_program() -> None:
    script = "trap 'echo once' INT; echo ready; while :; do sleep 0.05; done"
    with begun("s", "--", "sh", "-c", script, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"once\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 143
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert running() == []


@pytest.mark.slow
def test_ctrl_c_reaches_a_program_that_does_not_read() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    with begun("s", "--", "sh", "-c", "echo ready; exec sleep 1000", stdin=read) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            while True:
                os.write(write, b"x" * 65536)  # until nobody takes it
        except BlockingIOError:
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    os.close(read)
    os.close(write)


@pytest.mark.slow
async def test_a_reader_that_leaves_ends_the_program() -> None:
    with begun("s", "--", "yes", stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.wait(30) == 0
    await eventually(lambda: running() == [])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
async def test_the_program_ends_with_the_command(number: int) -> None:
    with begun("s", "--", *NAP, stdin=subprocess.PIPE) as process:
        await eventually(lambda: running() == [tuple(NAP)])
        process.send_signal(number)
        process.wait(30)
    await eventually(lambda: running() == [])


def test_detached_programs_are_listed_and_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    for option, number in (("-d", "p1"), ("--detach", "p2")):
        assert main(["sh", "s", option, "--", *NAP]) == 0
        assert json.loads(capsys.readouterr().out)["id"] == number
    assert main(["processes", "s", "--stop", "p1"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "cancelled"
    assert main(["processes", "s"]) == 0
    listed = [(one["id"], one["exit_code"]) for one in json.loads(capsys.readouterr().out)["processes"]]
    assert listed == [("p1", 143), ("p2", None)]
    assert main(["processes", "s", "--stop", "p9"]) != 0
    assert "no process 'p9'" in capsys.readouterr().err


def test_bad_commands_say_what_is_wrong() -> None:
    cases: list[tuple[tuple[str, ...], str]] = [
        (("s",), "name a program: cellblock sh s -- PROGRAM ARGS"),
        (("s", "-d", "--timeout", "5", "--", "true"), "give --detach or --timeout, not both"),
        (("s", "--timeout", "soon", "--", "true"), "--timeout must be a positive number"),
        (("s", "-e", "A", "--", "true"), "--env"),
        (("s", "--cwd", "missing", "--", "true"), "its directory cannot be entered"),
    ]
    for arguments, message in cases:
        done = run_here("sh", *arguments)
        assert (done.returncode != 0, done.stdout) == (True, "")
        assert message in done.stderr


@pytest.mark.slow
def test_undo_and_restore_end_programs_if_that_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    for go_back in (["undo", "s"], ["restore", "s", "c"]):
        cellblock.checkpoint("s", "c")
        cellblock.execute("s", "x = 1")
        cellblock.spawn_process("s", NAP)
        assert main(go_back) == 0
        assert running() == [tuple(NAP)]
        cellblock.execute("s", "x = 1")
        assert main([*go_back, "--stop-processes"]) == 0
        assert running() == []
        cellblock.drop_checkpoint("s", "c")
    assert f"cellblock: not undone: process p1 keeps running: {' '.join(NAP)}" not in capsys.readouterr().err


# -- in a terminal -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_shell_in_a_terminal() -> None:
    with terminal(*command("sh", "s"), PS1="") as screen:
        screen.enter("stty size; echo $((6 * 7)) $TERM; test -t 0 && echo tty")
        screen.wait_for("40 100")
        screen.wait_for("42 xterm")
        screen.wait_for("tty")
        assert not screen.echoes  # the program's own terminal does that
        screen.enter("exit 5")
        assert screen.end() == 5


@pytest.mark.slow
def test_a_terminal_is_resized_and_takes_ctrl_c_and_is_as_before() -> None:
    script = "trap 'stty size' WINCH; trap 'echo interrupted; exit 3' INT; echo ready; while :; do sleep 0.05; done"
    with terminal(*command("sh", "s", "--", "sh", "-c", script)) as screen:
        screen.wait_for("ready")
        fcntl.ioctl(screen._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
        screen.wait_for("30 90")
        screen.type("\x03")
        screen.wait_for("interrupted")
        assert screen.end() == 3
        assert screen.echoes


@pytest.mark.slow
def test_a_terminal_is_as_before_when_the_command_is_ended() -> None:
    with terminal(*command("sh", "s", "--", "sh", "-c", "echo ready; exec sleep 1000")) as screen:
        screen.wait_for("ready")
        screen.process.send_signal(signal.SIGTERM)
        assert screen.end() == 143
        assert screen.echoes
