"""Counting a session's objects in the kernel's memory, here of this process's children."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cellblock.launch.init import kernel_objects as module
from cellblock.launch.init.kernel_objects import KernelObjects
from processes import eventually
from suite import first_quick

FEW = {
    "file locks": 10,
    "watches of epoll": 10,
    "memory maps": 100_000,
    "semaphores to be undone": 10,
    "open descriptors": 100,
    "descriptors in unreceived messages": 10,
}


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The machine's kernel memory, as it is read: it grows by what a test adds."""
    now = [100 << 20]
    monkeypatch.setattr(module, "_unreclaimable", lambda: now[0])
    monkeypatch.setattr(module, "limits", lambda: dict(FEW))
    return now


@pytest.fixture
def child() -> Iterator[Callable[[Callable[[], object]], int]]:
    """Does something in a child, which then waits; returns its pid."""
    pids = []

    def begin(action: Callable[[], object]) -> int:
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                os.closerange(3, writer)  # what the tests' process has does not count
                os.closerange(writer + 1, 4096)
                _kept = action()
                os.write(writer, b"x")
                signal.pause()
            finally:
                os._exit(1)
        pids.append(pid)
        os.read(reader, 1)
        os.close(reader)
        os.close(writer)
        return pid

    yield begin
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def lock(path: Path, number: int) -> object:
    file = path.open("w")
    for place in range(number):
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * place)
    return file


def watch(number: int) -> object:
    watching, watched = select.epoll(), [os.eventfd(0) for _ in range(number)]
    for one in watched:
        watching.register(one)
    return watching


def send(number: int) -> object:
    pair = socket.socketpair()
    socket.send_fds(pair[0], [b"x"], [0] * number)
    return pair


@pytest.mark.parametrize(
    "kind", first_quick(["file locks", "none", "watches of epoll", "descriptors in unreceived messages"], 2)
)
def test_what_a_process_has_too_many_of_is_named(
    grown: list[int], child: Callable[[Callable[[], object]], int], tmp_path: Path, kind: str
) -> None:
    actions: dict[str, Callable[[int], object]] = {
        "file locks": lambda number: lock(tmp_path / "locked", number),
        "watches of epoll": watch,
        "descriptors in unreceived messages": send,
        "none": lambda number: lock(tmp_path / "locked", number - 11),
    }
    pid = child(lambda: actions[kind](20))
    objects = KernelObjects(apart=True)
    objects.look({pid}, set())
    if kind == "none":
        assert objects.excess == ""
    else:  # with what it has from this process
        assert re.fullmatch(rf"its processes have 2\d {kind} or more; the limit is 10", objects.excess)


def test_memory_maps_are_counted(child: Callable[[Callable[[], object]], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "limits", lambda: {**FEW, "memory maps": 3})
    objects = KernelObjects(apart=True)
    objects.look({child(lambda: None)}, set())
    assert "memory maps or more; the limit is 3" in objects.excess


def test_objects_are_counted_again_when_the_machines_kernel_memory_has_grown(
    grown: list[int], child: Callable[[Callable[[], object]], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelObjects, "_many_in_flight", lambda _self: False)
    objects = KernelObjects(apart=True)
    objects.look(set(), set())
    pid = child(lambda: lock(tmp_path / "locked", 20))
    objects.look({pid}, set())
    assert objects.excess == ""
    grown[0] -= 50 << 20
    objects.look({pid}, set())
    assert objects.excess == ""
    grown[0] += 40 << 20  # since it was lowest
    objects.look({pid}, set())
    assert "file locks" in objects.excess


def test_objects_are_counted_after_a_while_without_a_sign(
    grown: list[int], child: Callable[[Callable[[], object]], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program may have freed as much memory as they take."""
    monkeypatch.setattr(KernelObjects, "_many_in_flight", lambda _self: False)
    objects = KernelObjects(apart=True)
    objects.look(set(), set())
    pid = child(lambda: lock(tmp_path / "locked", 20))
    objects.look({pid}, set())
    assert objects.excess == ""
    monkeypatch.setattr(module, "_PERIOD", 0.0)
    objects.look({pid}, set())
    assert "file locks" in objects.excess


async def test_what_hides_is_ended_when_the_machines_kernel_memory_has_grown(
    grown: list[int], child: Callable[[Callable[[], object]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that waits for an undo hides, too, and stays."""
    copy, other = child(lambda: None), child(lambda: None)

    def hidden(_process: str) -> Iterator[tuple[str, int]]:
        raise PermissionError

    monkeypatch.setattr(module, "_of_descriptors", hidden)  # root may look into what hides
    objects = KernelObjects(apart=True)
    objects.look({copy, other}, {copy})
    assert os.waitid(os.P_PID, other, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    grown[0] += 300 << 20
    objects.look({copy, other}, {copy})
    await eventually(lambda: os.waitid(os.P_PID, other, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    assert os.waitid(os.P_PID, copy, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


IN_FLIGHT = """
import os, socket
from cellblock.launch.init import kernel_objects
from cellblock.walls.sandbox.namespaces import enter_mount_namespace
enter_mount_namespace(os.getuid(), os.getgid())  # where root, too, may not exceed its limits
kernel_objects._IN_FLIGHT = 8
objects, pair = kernel_objects.KernelObjects(apart=True), socket.socketpair()
sent = 0
while not objects._many_in_flight() and sent < 20_000:
    socket.send_fds(pair[0], [b"x"], [0] * 20)
    sent += 20
print(sent)
"""


def test_many_descriptors_in_flight_are_noticed() -> None:
    """Of all processes of this user, so that there may be some already."""
    found = subprocess.run([sys.executable, "-c", IN_FLIGHT], capture_output=True, text=True, check=True)
    assert int(found.stdout) <= 20
