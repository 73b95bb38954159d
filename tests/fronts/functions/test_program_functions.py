"""Programs beside the kernels of named sessions, by `cellblock.exec_process` and its like."""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cellblock
from cellblock import InvalidInputError, NotFoundError, ProcessError, SessionRecord
from cellblock.host.programs.background_programs import Programs
from cellblock.host.programs.process import Process
from daemons import own_daemon

FIVE: Any = 5
NAP = ["sleep", f"{3000 + os.getpid()}"]


@pytest.fixture(scope="module", autouse=True)
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with own_daemon(tmp_path_factory.mktemp("daemon")) as home:
        yield home


@pytest.fixture
def session(tmp_path: Path) -> Iterator[SessionRecord]:
    yield cellblock.get_or_create("s", working_dir=str(tmp_path))
    cellblock.wipe()


@pytest.mark.slow
def test_exec(session: SessionRecord, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    done = cellblock.exec_process(session, "pwd; cat; echo $A >&2; exit 3", cwd=Path("d"), env={"A": "1"}, input=b"\xff")
    assert (done.status, done.exit_code) == ("exited", 3)
    assert (done.stdout, done.stderr) == (f"{tmp_path}/d\n".encode() + b"\xff", b"1\n")
    assert cellblock.exec_process("s", ["cat"], input="ü").out == "ü"
    assert cellblock.exec_process(session.kernel_id, ["echo", "$A; b"]).out == "$A; b\n"
    assert cellblock.exec_process("s", "echo a; echo b >&2", merge=True).out == "a\nb\n"
    assert cellblock.exec_process("s", "seq 99999", max_output=100).truncated
    late = cellblock.exec_process("s", NAP, timeout=0.1)
    assert (late.status, late.reason) == ("timeout", "stopped after 0.1 s")
    assert cellblock.exec_process("s", "true", timeout=None).ok
    cellblock.exec_process("s", "echo kept", log="log")
    assert (tmp_path / "log").read_text() == "kept\n"
    missing = cellblock.exec_process("s", ["no-such-program"])
    assert (missing.status, missing.exit_code) == ("not_started", 127)


def test_the_life_of_a_process(session: SessionRecord) -> None:
    made = cellblock.spawn_process("s", ["cat"], stdin=True, label="cat")
    assert cellblock.processes("s") == [made]
    assert cellblock.write_process("s", made, "ü\n")
    output = cellblock.read_process("s", made, 0, 10)
    assert [piece.data for piece in output.pieces] == ["ü\n".encode()]
    assert cellblock.write_process("s", made.id, b"\xff", end=True)
    assert [piece.data for piece in cellblock.read_process("s", made, output.position, 10).pieces] == [b"\xff"]
    while not (output := cellblock.read_process("s", made, 4, 10)).finished:
        pass
    assert output.result is not None
    assert output.result.ok
    nap = cellblock.spawn_process("s", NAP)
    cellblock.signal_process("s", nap, signal.SIGINT)
    while not (output := cellblock.read_process("s", nap, 0, 10)).finished:
        pass
    assert output.result is not None
    assert (output.result.status, output.result.signal) == ("signalled", signal.SIGINT)
    assert cellblock.stop_process("s", cellblock.spawn_process("s", NAP), 1.0).status == "cancelled"


def test_a_terminal(session: SessionRecord) -> None:
    shell = cellblock.spawn_process("s", ["sh", "-c", "read line; stty size"], pty=(10, 20))
    cellblock.resize_process("s", shell, 30, 40)
    cellblock.write_process("s", shell, "\n")
    while not (output := cellblock.read_process("s", shell, 0, 10)).finished:
        pass
    assert b"".join(piece.data for piece in output.pieces).endswith(b"30 40\r\n")


def test_undo_and_restore_end_programs_if_that_is_wanted(session: SessionRecord) -> None:
    for go_back in (cellblock.undo, lambda name, **how: cellblock.restore(name, "first", **how)):
        cellblock.checkpoint("s", "first")
        cellblock.execute("s", "x = 1")
        nap = cellblock.spawn_process("s", NAP)
        go_back("s", processes="keep")
        assert cellblock.processes("s")[-1].running
        cellblock.execute("s", "x = 1")
        go_back("s", processes="stop")
        assert [one.running for one in cellblock.processes("s") if one.id == nap.id] == [False]
        cellblock.drop_checkpoint("s", "first")
    with pytest.raises(InvalidInputError, match="processes must be"):
        cellblock.undo("s", processes="all")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: cellblock.exec_process("none", "true"), NotFoundError, "no session 'none'"),
        (lambda: cellblock.exec_process("s", []), InvalidInputError, "command must be"),
        (lambda: cellblock.exec_process("s", "cat", input=FIVE), InvalidInputError, "input must be"),
        (lambda: cellblock.exec_process("s", "true", timeout=float("nan")), InvalidInputError, "timeout"),
        (lambda: cellblock.exec_process("s", "true", timeout=-1), InvalidInputError, "timeout"),
        (lambda: cellblock.exec_process("s", "true", max_output=10**9), InvalidInputError, "max_output"),
        (lambda: cellblock.spawn_process("s", ["no-such-program"]), ProcessError, "no-such-program was not started"),
        (lambda: cellblock.spawn_process("s", "true", pty=(0, 5)), InvalidInputError, "size of a terminal"),
        (lambda: cellblock.spawn_process("s", "true", pty=(0, 0)), InvalidInputError, "size of a terminal"),
        (lambda: cellblock.spawn_process("s", "true", pty=FIVE), InvalidInputError, "size of a terminal"),
        (lambda: cellblock.read_process("s", "p9"), NotFoundError, "no process 'p9'"),
        (lambda: cellblock.read_process("s", "p9", 0, 31), NotFoundError, "p9"),
        (lambda: cellblock.write_process("s", "p9", FIVE), InvalidInputError, "data must be"),
    ],
)
def test_bad_calls_say_what_is_wrong(session: SessionRecord, call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_the_functions_take_what_a_session_takes() -> None:
    """What is different: there is no `on_output`, as the output comes through a socket, and `keep` has another default."""
    for function, method in (
        (cellblock.exec_process, Programs.exec),
        (cellblock.spawn_process, Programs.spawn),
        (cellblock.stop_process, Process.stop),
        (cellblock.signal_process, Process.signal),
        (cellblock.resize_process, Process.resize),
    ):
        taken = set(inspect.signature(function).parameters) - {"kernel", "process"}
        assert taken == set(inspect.signature(method).parameters) - {"self", "on_output"}
