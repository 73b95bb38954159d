"""What processes of a session can say to its init about copies: only what concerns themselves, and not without end."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from cellblock.init.parked import Parked
from cellblock.wire.copies import Copied, Untaken
from cellblock.wire.datagrams import encode_control


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


@contextmanager
def child(does: Callable[[], object]) -> Iterator[int]:
    """A child of this process, which does something and then waits."""
    pid = os.fork()
    if pid == 0:
        try:
            does()
            signal.pause()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def say_copied(nursery: socket.socket, number: int) -> socket.socket:
    mine, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with given:
        socket.send_fds(nursery, [encode_control(Copied(number))], [given.fileno()])
    return mine


def served(copies: Parked, nursery: socket.socket, seconds: float) -> bool:
    """Serve one message, if one comes in time."""
    if not select.select([nursery], [], [], seconds)[0]:
        return False
    copies.serve(nursery.fileno())
    return True


def test_a_process_is_one_copy_at_most(pair: tuple[socket.socket, socket.socket]) -> None:
    """When it has been waited for, its number may be that of any other process, which must not be killed in its place."""
    ours, theirs = pair
    copies = Parked(ours, select.poll())
    told: list[int] = []
    copies.on_copied = told.append
    with child(lambda: [say_copied(theirs, number) for number in (1, 2, 3)]) as pid:
        assert [served(copies, ours, 30) for _ in range(3)] == [True] * 3
        assert (told, copies.pids) == ([1], {pid})
        copies.ended(pid)
        assert copies.pids == set()


def test_a_process_that_is_no_child_is_no_copy(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    copies = Parked(ours, select.poll())
    with say_copied(theirs, 1):
        assert served(copies, ours, 30)
    assert copies.pids == set()


def test_a_copy_that_is_dropped_cannot_talk_without_end(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    copies = Parked(ours, select.poll())
    heard: list[int] = []

    def hear(kernel: int) -> None:
        heard.append(kernel)
        select.select([copies._copies[1][1]], [], [], 30)  # it is always quicker

    copies.on_untaken = hear

    def talk() -> None:
        mine = say_copied(theirs, 1)
        for _ in range(2000):
            mine.send(encode_control(Untaken(1)))
        mine.close()

    with child(talk):
        assert served(copies, ours, 30)
        copies.drop(1)
        assert len(heard) < 1000
        assert copies.pids == set()
