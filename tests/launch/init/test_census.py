"""The memory of several kernels in one init, counted together."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cellblock.launch.init import census, processes
from cellblock.launch.init.census import Census
from cellblock.launch.init.programs import Programs
from cellblock.launch.init.seats import Seat
from processes import eventually

LARGE = 40 << 20


@pytest.fixture
def seats() -> Iterator[list[Seat]]:
    """Two kernels, of which the first has a child that takes 40 MiB."""
    script = "import subprocess, sys; subprocess.run([sys.executable, '-Sc', sys.argv[1]], stdin=0)"
    large = f"b = bytearray(b'x' * {LARGE}); print('x', flush=True); input()"
    workers = [
        subprocess.Popen([sys.executable, "-Sc", script, large], stdin=subprocess.PIPE, stdout=subprocess.PIPE),
        subprocess.Popen([sys.executable, "-Sc", "input()"], stdin=subprocess.PIPE),
    ]
    assert workers[0].stdout is not None
    workers[0].stdout.read(1)
    found = [Seat(socket.socket(), worker.pid, Programs()) for worker in workers]
    yield found
    for worker, seat in zip(workers, found, strict=True):
        worker.communicate()
        seat.control.close()


def test_each_kernel_has_its_own_processes_and_those_of_none(seats: list[Seat]) -> None:
    large, small = (Census().used(seat, seats, (), 1 << 40) for seat in seats)
    assert large - small > LARGE * 0.9
    # More than is enough is measured exactly.
    used = Census().used(seats[0], seats, (), 0)
    assert LARGE < used < Census().used(seats[0], seats, (), 1 << 40)


def test_there_is_one_walk_for_all(seats: list[Seat], monkeypatch: pytest.MonkeyPatch) -> None:
    """In which a new kernel is counted at once."""
    monkeypatch.setattr(census, "AGE", 3600)
    counted = Census()
    counted.used(seats[1], seats[1:], (), 1 << 40)
    assert counted.used(seats[0], seats, (), 1 << 40) > LARGE
    counted = Census()
    first = counted.used(seats[0], seats, (), 1 << 40)
    monkeypatch.setattr(processes, "descendants", lambda _pid: pytest.fail("it walks again"))
    assert counted.used(seats[1], seats, (), 1 << 40) < first
    assert counted.used(seats[0], seats, (), 1 << 40) == first


async def test_what_counts_for_none_does_not_count(seats: list[Seat]) -> None:
    await eventually(lambda: processes.children(seats[0].worker or 0))
    child = processes.children(seats[0].worker or 0)
    assert Census().used(seats[0], seats, (), 1 << 40) - Census().used(seats[0], seats, child, 1 << 40) > LARGE * 0.9
