"""Which workers may still be ending when the next kernel of their session runs: those that hold only their own connections."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from cellblock.launch.init import held_resources, processes, system_v

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")


@contextmanager
def worker(act: Callable[[], object] = lambda: None) -> Iterator[int]:
    """A stopped process with the descriptors of a worker, after it has done something."""
    pid = os.fork()
    if pid == 0:
        try:
            processes.keep_only({place: socket.socket().detach() for place in range(3, 7)})
            out = os.pipe()[1]
            for place in (1, 2):
                os.dup2(out, place)
            processes.close_descriptors(7)
            kept = act()  # noqa: F841  # what it has opened stays open
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(0)
    try:
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.fixture(autouse=True)
def others(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that forks workers here may be large, and other programs may have semaphores."""
    monkeypatch.setattr(held_resources, "_MOST", 2**40)
    if "semaphores" not in request.node.name:
        monkeypatch.setattr(system_v, "sets_of_semaphores", lambda: False)


def test_a_worker_with_its_own_connections_is_quiet() -> None:
    with worker() as pid:
        assert held_resources.holds_own_only(pid)


def _exchanged() -> None:
    """Close the empty standard input, and open another one in its place."""
    os.close(0)
    assert os.dup(3) == 0


def test_a_worker_that_holds_anything_else_is_waited_for() -> None:
    """A port, a file, a pipe, one descriptor fewer, or another one in its place."""
    acts: list[Callable[[], object]] = [
        lambda: socket.create_server(("127.0.0.1", 0)),
        lambda: os.open(__file__, os.O_RDONLY),
        os.pipe,
        lambda: os.close(6),
        _exchanged,
    ]
    for number, act in enumerate(acts):
        with worker(act) as pid:
            assert not held_resources.holds_own_only(pid), number


def test_a_worker_with_much_memory_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker() as pid:
        assert held_resources.holds_own_only(pid)
        monkeypatch.setattr(held_resources, "_MOST", 2**20)
        assert not held_resources.holds_own_only(pid)


def test_a_worker_that_has_ended_is_waited_for() -> None:
    with worker() as pid:
        pass
    assert not held_resources.holds_own_only(pid)


def test_semaphores_can_change_when_a_process_ends() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    number = libc.semget(0, 1, 0o600)
    if number < 0:
        raise OSError(ctypes.get_errno(), "semget")
    try:
        assert system_v.sets_of_semaphores()
        with worker() as pid:
            assert not held_resources.holds_own_only(pid)
    finally:
        assert libc.semctl(number, 0, 0) == 0  # IPC_RMID
