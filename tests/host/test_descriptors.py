"""Reading descriptors and waiting for processes, without threads."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys

import pytest

from cellblock.host.descriptors import Tail, pending, process_ended, read_some, receive_message
from processes import eventually


def test_pending_counts_what_can_be_read_now() -> None:
    reader, writer = os.pipe()
    try:
        assert pending(reader) == 0
        os.write(writer, b"x" * 1000)
        assert pending(reader) == 1000
        os.read(reader, 400)
        assert pending(reader) == 600
    finally:
        os.close(reader)
        os.close(writer)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"x" * 1000)
        assert pending(ours.fileno()) == 1000


def test_reading_tells_nothing_yet_from_the_end() -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    assert read_some(reader) is None
    os.write(writer, b"abc")
    assert read_some(reader, 2) == b"ab"
    assert read_some(reader) == b"c"
    os.close(writer)
    assert read_some(reader) == b""
    os.close(reader)
    assert read_some(reader) == b""


async def test_a_tail_keeps_the_last_that_was_written() -> None:
    reader, writer = os.pipe()
    tail = Tail()
    tail.follow(reader)
    with open(writer, "wb", buffering=0) as file:
        for number in range(200):
            file.write(b"%0500d" % number)
            await asyncio.sleep(0)
    await eventually(lambda: tail._descriptor is None)
    assert tail.text().endswith(f"{199:0500}")
    assert len(tail.text()) == 16 * 1024
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reader)


async def test_a_tail_reads_what_is_there_when_it_is_asked_to() -> None:
    reader, writer = os.pipe()
    tail = Tail()
    tail.follow(reader)
    os.write(writer, b"last words \xff")
    tail.drain()
    assert tail.text() == "last words �"
    tail.close()
    tail.close()
    tail.drain()
    os.close(writer)


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sleep", "60"])


@pytest.fixture(params=["pidfd", "poll"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way of waiting: Linux's, and the one for other systems."""
    if request.param == "poll":
        monkeypatch.setattr(sys, "platform", "darwin")
    return str(request.param)


@pytest.mark.usefixtures("way")
async def test_waiting_ends_with_the_process() -> None:
    process = sleeper()
    asyncio.get_running_loop().call_later(0.02, process.send_signal, signal.SIGKILL)
    assert await process_ended(process, timeout=1000)
    assert process.returncode == -signal.SIGKILL
    assert await process_ended(process, timeout=0)


@pytest.mark.usefixtures("way")
async def test_waiting_ends_with_its_time_limit() -> None:
    process = sleeper()
    try:
        assert not await process_ended(process, timeout=0.02)
    finally:
        process.kill()
        process.wait()


async def test_waiting_leaves_no_descriptor_when_it_is_cancelled() -> None:
    process = sleeper()
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    waiting = asyncio.ensure_future(process_ended(process, timeout=30))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    process.kill()
    process.wait()
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) == before


def test_what_a_peer_has_sent_is_received_although_it_has_left_messages_unread() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        ours.send(b"a command")
        theirs.send(b"its last words")
        theirs.close()
        assert receive_message(ours, 100) == (b"its last words", [])
        assert receive_message(ours, 100) == (b"", [])
