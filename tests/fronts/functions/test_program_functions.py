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

FIVE: Any = 5
NAP = ["sleep", f"{3000 + os.getpid()}"]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[SessionRecord]:
    yield cellblock.get_or_create("s", working_dir=str(tmp_path))
    cellblock.wipe()


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


def test_bad_calls_say_what_is_wrong(session: SessionRecord) -> None:
    cases: list[tuple[Any, type[Exception], str]] = [
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
    ]
    for call, error, message in cases:
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
