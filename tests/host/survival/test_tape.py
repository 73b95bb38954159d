"""Tapes: every byte is in one place that outlives the process, and what was cut off is told from what was written."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cellblock.host.survival.tape import CHANNEL, STDOUT, Aux, Kind, Tape, piece


@pytest.fixture
def aux() -> Iterator[Aux]:
    """The pipe that tapes share."""
    made = Aux.make()
    yield made
    made.close()


@pytest.fixture
def tape(aux: Aux) -> Iterator[Tape]:
    """A tape with a base."""
    made = Tape.make(3, aux)
    made.base((0, 0, 0), b"start")
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A host's end and a worker's end of a channel."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(5)
    with ours, theirs:
        yield ours, theirs


def again(tape: Tape, aux: Aux) -> Tape:
    """Return the tape as the next process has it."""
    return Tape(tape.number, tape.fds, aux)


def test_what_was_received_is_received_again_from_the_base(tape: Tape, aux: Aux, pair: tuple[socket.socket, ...]) -> None:
    ours, theirs = pair
    theirs.send(b"one")
    assert tape.receive(ours.fileno(), 100) == b"one"
    tape.base((3, 0, 0), b"middle")
    theirs.send(b"two")
    assert tape.receive(ours.fileno(), 100) == b"two"
    following = again(tape, aux)
    base, records = following.recover()
    assert (base.offsets, base.content, records) == ((3, 0, 0), b"middle", [])
    theirs.send(b"three")
    assert following.receive(ours.fileno(), 100) == b"two"
    assert following.receive(ours.fileno(), 100) == b"three"
    with pytest.raises(BlockingIOError):
        following.receive(ours.fileno(), 100)
    theirs.close()
    assert following.receive(ours.fileno(), 100) == b""


def test_what_was_on_its_way_to_the_tape_arrives(tape: Tape, aux: Aux, pair: tuple[socket.socket, ...]) -> None:
    ours, theirs = pair
    theirs.send(b"half way")
    aux._owner[0] = tape.number
    os.splice(ours.fileno(), aux.fds[1], 100, flags=os.SPLICE_F_NONBLOCK)  # and then it was killed
    assert aux.left() == tape.number
    following = again(tape, aux)
    following.take_left()
    following.recover()
    assert aux.left() is None
    assert following.receive(ours.fileno(), 100) == b"half way"


def test_what_nobody_takes_does_not_become_anothers(tape: Tape, aux: Aux, pair: tuple[socket.socket, ...]) -> None:
    ours, theirs = pair
    theirs.send(b"another's")
    aux._owner[0] = tape.number + 1
    os.splice(ours.fileno(), aux.fds[1], 100, flags=os.SPLICE_F_NONBLOCK)
    assert aux.left() == tape.number + 1
    aux.drain()
    theirs.send(b"mine")
    assert tape.receive(ours.fileno(), 100) == b"mine"


def test_a_frame_is_sent_once_however_much_of_it_was_sent(tape: Tape, aux: Aux, pair: tuple[socket.socket, ...]) -> None:
    ours, theirs = pair
    frames = [os.urandom(300_000), os.urandom(10), os.urandom(300_000)]
    for frame in frames:
        tape.queue(frame)
    got = b""
    while len(got) < 600_010:
        try:
            tape.flush(ours.fileno())
        except BlockingIOError:
            got += theirs.recv(50_000)
        else:
            got += theirs.recv(1_000_000)
        tape = again(tape, aux)  # killed, and the next one goes on
        tape.recover()
    assert got == b"".join(frames)
    assert not tape.sending


def test_a_record_that_was_cut_off_never_was(tape: Tape, aux: Aux) -> None:
    tape.append(Kind.EXTRA, b"whole")
    size = os.fstat(tape.fds[0]).st_size
    tape.append(Kind.EXTRA, b"cut off")
    record = os.pread(tape.fds[0], 1000, size)
    for cut in range(len(record)):
        os.ftruncate(tape.fds[0], size)
        os.pwrite(tape.fds[0], record[:cut], size)
        following = again(tape, aux)
        _, records = following.recover()
        assert [record.content for record in records] == [b"whole"]
    following.append(Kind.EXTRA, b"next")
    last = again(tape, aux)
    assert [record.content for record in last.recover()[1]] == [b"whole", b"next"]


@contextmanager
def room_for(tape: Tape, size: int) -> Iterator[None]:
    """Let the log grow by so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.fstat(tape.fds[0]).st_size + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 1, 14, 40, 4000])
def test_what_there_is_no_room_for_was_not_written_in_part(tape: Tape, aux: Aux, room: int) -> None:
    """The base that was to be written with it comes with the next record."""
    tape.append(Kind.STOP, b"before")
    tape.base((0, 0, 0), b"it runs", more=True)
    with room_for(tape, room), pytest.raises(OSError, match=r"\[Errno (27|28)\]"):
        tape.queue(b"x" * 5000)
    assert not tape.sending
    tape.base((0, 0, 0), b"it does not", more=True)
    tape.append(Kind.EXTRA, b"after")
    base, records = again(tape, aux).recover()
    assert base.content == b"it does not"
    assert [(record.kind, record.content) for record in records] == [(Kind.EXTRA, b"after")]


def test_a_base_that_there_is_no_room_for_changes_nothing(tape: Tape, aux: Aux, pair: tuple[socket.socket, ...]) -> None:
    ours, theirs = pair
    for _ in range(3):  # so that a base would have what is before it dropped
        theirs.send(b"x" * 100_000)
        tape.receive(ours.fileno(), 100_000)
        tape.append(Kind.EXTRA, b"x" * 100_000)
    tape.taken = 3
    with room_for(tape, 1), pytest.raises(OSError, match=r"\[Errno (27|28)\]"):
        tape.base((1, 0, 0), b"lost")
    tape.queue(b"frame")
    base, records = again(tape, aux).recover()
    assert base.content == b"start"
    assert [(record.kind, record.messages) for record in records] == [*[(Kind.EXTRA, 0)] * 3, (Kind.SENT, 3)]


def test_pieces_of_pipes_are_written_down_with_their_place_among_the_messages(tape: Tape, aux: Aux) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"abc")
    tape.taken = 7
    assert tape.read_pipe(STDOUT, reader, 2) == b"ab"
    following = again(tape, aux)
    _, (record,) = following.recover()
    assert (record.messages, piece(record.content)) == (7, (STDOUT, 2))
    assert following.again(STDOUT, 2) == b"ab"
    assert following.read_pipe(STDOUT, reader, 10) == b"c"
    os.close(writer)
    assert following.read_pipe(STDOUT, reader, 10) == b""
    os.close(reader)


def test_a_long_tape_takes_little_memory(tape: Tape, aux: Aux, pair: tuple[socket.socket, ...]) -> None:
    ours, theirs = pair
    used = 0
    for _ in range(100):
        theirs.send(b"x" * 100_000)
        used += len(tape.receive(ours.fileno(), 200_000))
        tape.base((used, 0, 0), b"", more=True)
        tape.queue(b"y" * 10_000)
        tape.flush(ours.fileno())
        theirs.recv(20_000)
    assert used == 10_000_000
    assert sum(os.fstat(fd).st_blocks * 512 for fd in tape.fds) < 3_000_000
    following = again(tape, aux)
    base, records = following.recover()
    assert base.offsets == (used, 0, 0)
    assert [record.kind for record in records] == [Kind.SENT]
    assert following.unused(CHANNEL) == 0


def test_a_tape_without_a_base_is_refused(aux: Aux) -> None:
    tape = Tape.make(1, aux)
    with pytest.raises(ValueError, match="no base"):
        tape.recover()
    tape.close()
