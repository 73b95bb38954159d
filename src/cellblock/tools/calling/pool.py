"""A connection pool for `runner`: plain sockets, for blocking code and any event loop. Standard library only.

It uses no thread, because a kernel with threads cannot be forked. It uses no asyncio transport, because a transport belongs
to one loop. An idle connection is a socket that nothing watches.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
import time
import weakref
from dataclasses import dataclass, field

MAX_CONNECTIONS = 64
"""Maximum calls in flight of one event loop, and of all threads together; further ones are queued."""

IDLE = 30.0
"""Seconds that an idle connection is kept: fewer than on the server, which must not close it during a request."""

_LOOPBACK = ("127.0.0.1", "::1")
_CONNECT = 10.0
_CHUNK = 256 * 1024
_MAX_HEAD = 64 * 1024
_MOST_DIGITS = 15  # of a length

Address = tuple[str, int]


class BadAnswerError(OSError):
    """The answer is not valid HTTP of a tool server, or ended too early."""


class Answer:
    """A parser of one HTTP answer, which takes bytes and never waits."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._body = -1
        self._end = -1
        self.status = 0
        self.keep = True

    def feed(self, data: bytes) -> bool:
        """Add received bytes.

        Args:
            data: The bytes; none if the connection has ended.

        Returns:
            Whether the answer is complete.

        Raises:
            BadAnswerError: It can never be complete.
        """
        if not data:
            raise BadAnswerError("the connection ended before the answer")
        self._data += data
        if self._end < 0 and not self._read_head():
            return False
        if len(self._data) > self._end:
            raise BadAnswerError("there is more than one answer")
        return len(self._data) == self._end

    @property
    def body(self) -> bytes:
        """The body."""
        return bytes(memoryview(self._data)[self._body :])

    def _read_head(self) -> bool:
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            if len(self._data) > _MAX_HEAD:
                raise BadAnswerError("the headers have no end")
            return False
        first, *lines = bytes(self._data[:end]).split(b"\r\n")
        version, _, rest = first.partition(b" ")
        headers = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip().lower()
        length = headers.get(b"content-length", b"")
        if version != b"HTTP/1.1" or not rest[:3].isdigit() or not length.isdigit() or len(length) > _MOST_DIGITS:
            raise BadAnswerError("this is not a tool server")
        self.status = int(rest[:3])
        self.keep = headers.get(b"connection") != b"close"
        self._body = end + 4
        self._end = self._body + int(length)
        return True


@dataclass
class _State:
    """State that a forked child must not share with its parent."""

    idle: dict[Address, list[tuple[float, socket.socket]]] = field(default_factory=dict)
    busy: set[socket.socket] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    threads: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(MAX_CONNECTIONS))
    loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = field(
        default_factory=weakref.WeakKeyDictionary
    )


_state = _State()


def send(address: Address, request: bytes) -> Answer:
    """Send a request and wait for its answer, blocking.

    Args:
        address: Host and port.
        request: The whole request.

    Raises:
        OSError: The connection failed or was lost. The request may have had its effect.
    """
    with _state.threads:
        connection = _take(address) or _connected(address)
        try:
            connection.setblocking(True)
            connection.sendall(request)
            answer = Answer()
            while not answer.feed(connection.recv(_CHUNK)):
                pass
        except BaseException:
            _drop(connection)
            raise
        _give(address, connection, answer.keep)
        return answer


async def send_async(address: Address, request: bytes) -> Answer:
    """Send a request and wait for its answer in the running event loop.

    Args:
        address: Host and port.
        request: The whole request.

    Raises:
        OSError: The connection failed or was lost. The request may have had its effect.
    """
    loop = asyncio.get_running_loop()
    turn = _state.loops.get(loop)
    if turn is None:
        with _state.lock:
            turn = _state.loops.setdefault(loop, asyncio.Semaphore(MAX_CONNECTIONS))
    async with turn:
        connection = _take(address)
        if connection is None:
            connection = await _connected_async(loop, address)
        try:
            connection.setblocking(False)
            await loop.sock_sendall(connection, request)
            answer = Answer()
            while not answer.feed(await loop.sock_recv(connection, _CHUNK)):
                pass
        except BaseException:
            # Also a cancellation: closing tells the server that the caller has left.
            _drop(connection)
            raise
        _give(address, connection, answer.keep)
        return answer


def close() -> None:
    """Close the idle connections; the next call reconnects."""
    with _state.lock:
        kept, _state.idle = _state.idle, {}
    for connections in kept.values():
        for _, connection in connections:
            connection.close()


def idle() -> set[int]:
    """Return the descriptors of idle connections."""
    with _state.lock:
        return {connection.fileno() for connections in _state.idle.values() for _, connection in connections}


def _take(address: Address) -> socket.socket | None:
    """Return a usable idle connection, if any."""
    while True:
        with _state.lock:
            idle = _state.idle.get(address)
            if not idle:
                return None
            since, connection = idle.pop()
            _state.busy.add(connection)
        # If data is readable before a request, the server has closed the connection.
        if time.monotonic() - since < IDLE and not _readable(connection):
            return connection
        _drop(connection)


def _give(address: Address, connection: socket.socket, keep: bool) -> None:
    if not keep:
        _drop(connection)
        return
    with _state.lock:
        if connection in _state.busy:
            _state.busy.discard(connection)
            _state.idle.setdefault(address, []).append((time.monotonic(), connection))
            return
    connection.close()  # this is a forked child, and the connection belongs to its parent


def _drop(connection: socket.socket) -> None:
    with _state.lock:
        _state.busy.discard(connection)
    connection.close()


def _readable(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _connected(address: Address) -> socket.socket:
    error: OSError | None = None
    for host in _hosts(address[0]):
        try:
            connection = socket.create_connection((host, address[1]), _CONNECT)
        except OSError as failed:
            error = error or failed
        else:
            return _made(connection)
    raise error or OSError("there is no address")


async def _connected_async(loop: asyncio.AbstractEventLoop, address: Address) -> socket.socket:
    error: OSError | None = None
    for host in _hosts(address[0]):
        try:
            return await _connect_to(loop, host, address[1])
        except OSError as failed:
            error = error or failed
    raise error or OSError("there is no address")


async def _connect_to(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    if host in _LOOPBACK:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
    else:
        # Resolved in a thread, but never in a session, whose tool port is on its loopback interface.
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, host = found[0][0], str(found[0][4][0])
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        async with asyncio.timeout(_CONNECT):
            await loop.sock_connect(connection, (host, port))
    except BaseException:
        connection.close()
        raise
    return _made(connection)


def _hosts(host: str) -> tuple[str, ...]:
    return _LOOPBACK if host == "localhost" else (host,)


def _made(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with _state.lock:
        _state.busy.add(connection)
    return connection


def _forked() -> None:
    """Leave the connections to the parent, in a forked child.

    A copy of the parent's event loop may watch a waiting connection. Its descriptor is replaced by one at end of file,
    which that loop handles. Unregistering it would, with epoll, also unregister it in the parent.
    """
    global _state
    before, _state = _state, _State()
    if before.busy:
        end, other = socket.socketpair()
        other.close()
        for connection in before.busy:
            if connection.fileno() >= 0:
                os.dup2(end.fileno(), connection.fileno(), inheritable=False)
        end.close()
    for connections in before.idle.values():
        for _, connection in connections:
            connection.close()


os.register_at_fork(after_in_child=_forked)
