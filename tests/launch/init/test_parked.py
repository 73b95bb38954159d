"""What init takes for a copy of a worker: its own children only, each once. Whatever else is said harms nobody else."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator

import pytest

from cellblock.launch.init import parked as module
from cellblock.launch.init.parked import Parked
from cellblock.wire.copies import Copied, Taken, Untaken
from cellblock.wire.datagrams import encode_control
from processes import asleep, eventually

PATIENCE = 10.0
_PR_SET_PDEATHSIG = 1


class Nursery:
    """Where copies say that they exist.

    Attributes:
        parked: What takes them in.
        copied: The numbers of those that were taken in.
        gone: The numbers of those that have ended.
        taken: The kernels that were made of them.
    """

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.poll = select.poll()
        self.copied: list[int] = []
        self.gone: list[int] = []
        self.taken: list[int] = []
        self.on_untaken: Callable[[int], None] = lambda kernel: None
        self.parked = Parked(
            self.ours,
            self.poll,
            on_copied=self.copied.append,
            on_gone=self.gone.append,
            on_untaken=lambda kernel: self.on_untaken(kernel),
            on_taken=lambda kernel, _pid: self.taken.append(kernel),
        )
        self.pids: list[int] = []

    def say(self, data: bytes, *, descriptor: Callable[[], int] | None = None) -> socket.socket:
        """Say something on the nursery, from this process, and have it heard; return the end that a copy would keep."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket.send_fds(self.theirs, [data], [descriptor() if descriptor else theirs.fileno()])
        theirs.close()
        self.serve()
        return ours

    def fork(self, run: Callable[[], object]) -> int:
        """Run something in a child of this process, which then waits to be killed."""
        pid = os.fork()
        if pid == 0:
            try:
                run()
                signal.pause()
            finally:
                os._exit(1)
        self.pids.append(pid)
        return pid

    def serve(self) -> None:
        """Hear what has been said."""
        for descriptor, _ in self.poll.poll(PATIENCE * 1000):
            self.parked.serve(descriptor)

    def serve_copy(self) -> None:
        """Hear of a copy, first that it exists, and then that it hides."""
        self.serve()
        self.serve()

    def close(self) -> None:
        self.parked.drop_all()
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


def copy(nursery: Nursery, number: int = 1) -> Callable[[], object]:
    """Return what a copy does when it begins."""

    def begin() -> None:
        kept, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket.send_fds(nursery.theirs, [encode_control(Copied(number))], [theirs.fileno()])
        theirs.close()
        if kept.recv(1) == module.HIDE:  # not if it is refused
            kept.send(encode_control(Copied(number)))
        signal.pause()

    return begin


def test_a_child_that_says_it_is_a_copy_is_one_until_it_is_dropped(nursery: Nursery) -> None:
    pid = nursery.fork(copy(nursery))
    nursery.serve_copy()
    assert (nursery.copied, nursery.parked.pids) == ([1], {pid})
    nursery.parked.drop(1)
    assert (nursery.gone, nursery.parked.pids) == ([1], set())
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it was killed


async def test_a_copy_is_not_ended_for_its_silence_while_it_runs(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may not run it for seconds. One that sleeps has been asked, and will not answer."""
    monkeypatch.setattr(module, "_SECONDS_TO_HIDE", 0.0)

    def silent(number: int, *, runs: bool) -> None:
        kept, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket.send_fds(nursery.theirs, [encode_control(Copied(number))], [theirs.fileno()])
        kept.recv(1)
        while runs:
            pass
        signal.pause()  # here, where the connection stays open

    running = nursery.fork(lambda: silent(1, runs=True))
    nursery.serve()
    sleeping = nursery.fork(lambda: silent(2, runs=False))
    nursery.serve()
    answering = nursery.fork(copy(nursery, 3))
    nursery.serve()
    await eventually(lambda: asleep(sleeping) and asleep(answering) and not asleep(running), PATIENCE)
    nursery.parked.end_silent()
    assert (nursery.gone, nursery.copied, nursery.parked.pids) == ([2], [3], {running, answering})
    monkeypatch.setattr(module, "_MOST_SECONDS_TO_HIDE", 0.0)
    nursery.parked.end_silent()
    assert (nursery.gone, nursery.parked.pids) == ([2, 1], {answering})


def test_a_copy_that_ends_before_it_is_heard_is_gone(nursery: Nursery) -> None:
    pid = nursery.fork(copy(nursery))
    select.select([nursery.ours], [], [], PATIENCE)
    os.kill(pid, signal.SIGKILL)
    nursery.pids.remove(pid)
    os.waitpid(pid, 0)
    nursery.parked.ended(pid)
    nursery.serve()
    assert (nursery.copied, nursery.gone, nursery.parked.pids) == ([], [1], set())


def test_only_copies_that_the_next_host_knows_stay(nursery: Nursery) -> None:
    for number in (1, 2, 3):
        nursery.fork(copy(nursery, number))
        nursery.serve_copy()
    assert sorted(nursery.parked.keep([2, 7])) == [7]
    assert sorted(nursery.gone) == [1, 3]
    assert nursery.parked.pids == {nursery.pids[1]}


def test_a_process_that_is_not_a_child_is_no_copy(nursery: Nursery) -> None:
    """Init would kill it by its number when it is dropped, and that may be another process's by then."""

    def begin() -> None:
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            copy(nursery)()

    nursery.fork(begin)
    nursery.serve()
    assert nursery.parked.pids == set()


def test_a_number_belongs_to_the_first_that_has_it(nursery: Nursery) -> None:
    first = nursery.fork(copy(nursery))
    nursery.serve_copy()
    nursery.fork(copy(nursery))
    nursery.serve()
    assert (nursery.copied, nursery.parked.pids) == ([1], {first})


def test_there_is_a_limit_to_copies(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_COPIES", 1)
    for number in (1, 2):
        nursery.fork(copy(nursery, number))
        nursery.serve()
    nursery.serve()
    assert nursery.copied == [1]


@pytest.mark.parametrize("data", [b"{", b'{"op":"copied"}', b"\xff" * 100, encode_control(Taken(1))])
def test_what_is_not_a_message_of_a_new_copy_is_not_taken_for_one(nursery: Nursery, data: bytes) -> None:
    with nursery.say(data):
        assert nursery.copied == []


def test_what_is_not_a_socket_is_refused(nursery: Nursery) -> None:
    def begin() -> None:
        socket.send_fds(nursery.theirs, [encode_control(Copied(1))], [os.open(os.devnull, os.O_RDONLY)])

    nursery.fork(begin)
    nursery.serve()
    assert nursery.copied == []


def test_a_copy_that_says_something_else_is_ended(nursery: Nursery) -> None:
    def begin() -> None:
        kept, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept.send(encode_control(Taken(7)))  # as only a kernel that was made of it may, and before anybody asks
        socket.send_fds(nursery.theirs, [encode_control(Copied(1))], [theirs.fileno()])

    pid = nursery.fork(begin)
    nursery.serve()
    if not nursery.gone:  # its message has come later
        nursery.serve()
    assert (nursery.copied, nursery.gone, nursery.taken) == ([], [1], [])
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_process_is_one_copy_at_most(nursery: Nursery) -> None:
    """When it has been waited for, its number may be that of any other process, which must not be killed in its place."""

    def begin() -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
        for number, (_, theirs) in enumerate(pairs, 1):
            socket.send_fds(nursery.theirs, [encode_control(Copied(number))], [theirs.fileno()])
        signal.pause()

    pid = nursery.fork(begin)
    for _ in range(3):
        nursery.serve()
    assert ({*nursery.parked._copies}, nursery.parked.pids) == ({1}, {pid})
    nursery.parked.ended(pid)
    assert nursery.parked.pids == set()


def test_a_copy_that_is_dropped_cannot_talk_without_end(nursery: Nursery) -> None:
    reader, writer = os.pipe()
    heard: list[int] = []

    def begin() -> None:
        kept, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket.send_fds(nursery.theirs, [encode_control(Copied(1))], [theirs.fileno()])
        os.read(reader, 1)
        for _ in range(2000):
            kept.send(encode_control(Untaken(1)))
        kept.close()

    def hear(kernel: int) -> None:
        heard.append(kernel)
        wait()  # it is always quicker

    def wait() -> None:
        assert select.select([nursery.parked._copies[1][1]], [], [], PATIENCE)[0]

    nursery.on_untaken = hear
    nursery.fork(begin)
    nursery.serve()
    os.write(writer, b"1")
    wait()
    nursery.parked.drop(1)
    os.close(reader)
    os.close(writer)
    assert 0 < len(heard) < 1000
    assert nursery.parked.pids == set()
