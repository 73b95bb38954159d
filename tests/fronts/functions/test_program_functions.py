"""Programs beside the kernels of named sessions, by `cellblock.exec_process` and its like."""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellblock
from cellblock import SessionRecord
from cellblock.host.programs.background_programs import Programs
from cellblock.host.programs.process import Process

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
