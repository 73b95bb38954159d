"""Reads descriptors and waits for processes on an asyncio loop, without threads."""

from __future__ import annotations

import array
import asyncio
import errno
import fcntl
import os
import select
import socket
import sys
import termios
from typing import Protocol

PIPE_READ = 64 * 1024
"""Maximum bytes to read from a pipe at once."""

_MAX_TAIL = 16 * 1024
_SIOCGSKNS = 0x894C
"""The request for the network namespace of a socket (<linux/sockios.h>)."""


def pending(descriptor: int) -> int:
    """Return the number of readable bytes of a pipe or a stream socket."""
    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count, True)
    return count[0]


def unread(descriptor: int) -> int:
    """Return the number of bytes sent to a stream socket that the other end has not read."""
    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.TIOCOUTQ, count, True)
    return count[0]


def read_some(descriptor: int, size: int = PIPE_READ) -> bytes | None:
    """Read available data from a non-blocking descriptor; None without data, b"" at its end."""
    try:
        return os.read(descriptor, size)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def receive_message(connection: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """Receive one message, with at most one descriptor.

    A peer that closed with unread messages is a reset connection, which Linux reports first, once. The peer's own earlier
    messages, such as an exit status, come next.

    Raises:
        BlockingIOError: There is no message.
        OSError: The socket is broken.
    """
    try:
        return socket.recv_fds(connection, size, 1)[:2]
    except ConnectionResetError:
        return socket.recv_fds(connection, size, 1)[:2]


def receive_control(control: socket.socket, size: int) -> tuple[bytes, socket.socket | None]:
    """Receive one control message, with its TCP socket. Any other descriptor is closed.

    Raises:
        BlockingIOError: There is no message.
        OSError: The socket is broken.
    """
    data, descriptors = receive_message(control, size)
    found: socket.socket | None = None
    for descriptor in descriptors:
        try:
            passed = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            continue
        if passed.family == socket.AF_INET and passed.type == socket.SOCK_STREAM and passed.proto == socket.IPPROTO_TCP:
            found = passed
        else:
            passed.close()
    return data, found


def accepts(passed: socket.socket) -> bool:
    """Return whether a socket is a listener."""
    return bool(passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def is_in_other_network(passed: socket.socket) -> bool:
    """Return whether a socket is in a network namespace that this process has created, directly or by its children."""
    try:
        namespace = fcntl.ioctl(passed, _SIOCGSKNS)  # fails in a namespace of others
    except OSError:
        return False
    try:
        return not os.path.samestat(os.fstat(namespace), os.stat("/proc/self/ns/net"))
    finally:
        os.close(namespace)


async def connected(connecting: socket.socket, address: tuple[str, int], timeout: float) -> None:
    """Wait until a socket is connected.

    Raises:
        OSError: The connection failed, took too long, or is to another address.
    """
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.add_writer(connecting.fileno(), _set, done)
    try:
        async with asyncio.timeout(timeout):
            await done
    finally:
        loop.remove_writer(connecting.fileno())
    if code := connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(code, os.strerror(code))
    if (peer := connecting.getpeername()) != address:
        raise OSError(errno.EPROTO, f"it is connected to {peer}")


class Tail:
    """The last lines that a process wrote to a pipe."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._data = bytearray()

    def follow(self, descriptor: int) -> None:
        """Start reading a descriptor, and take ownership of it."""
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self.drain)

    def drain(self) -> None:
        """Read what is available now."""
        while self._descriptor is not None and (data := read_some(self._descriptor)) is not None:
            if not data:
                self.close()
                return
            self._data += data
            del self._data[:-_MAX_TAIL]

    def text(self) -> str:
        """Return the text read so far."""
        return self._data.decode("utf-8", "replace")

    def close(self) -> None:
        """Stop reading and close the descriptor."""
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


def hung_up(descriptor: int) -> bool:
    """Return whether the other end of a socket is closed."""
    poll = select.poll()
    poll.register(descriptor, 0)  # POLLHUP needs no request
    return bool(poll.poll(0))


class Child(Protocol):
    """A child of this process."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""


async def process_ended(process: Child, timeout: float) -> bool:
    """Wait for the end of a child process.

    Args:
        process: The child.
        timeout: Time limit in seconds.

    Returns:
        Whether it has ended.
    """
    if process.poll() is not None:
        return True
    if sys.platform != "linux":
        return await _poll_ended(process, timeout)
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    descriptor = os.pidfd_open(process.pid)
    try:
        loop.add_reader(descriptor, _set, ended)
        await asyncio.wait([ended], timeout=timeout)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return process.poll() is not None


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _poll_ended(process: Child, timeout: float) -> bool:
    deadline = asyncio.get_running_loop().time() + timeout
    while process.poll() is None:
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(0.005)
    return True
