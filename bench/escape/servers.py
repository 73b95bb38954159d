"""Servers that should be out of reach, and a proxy that stops nobody."""

from __future__ import annotations

import base64
import contextlib
import secrets
import socket
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def serve(listener: socket.socket, page: bytes) -> Iterator[None]:
    """Answer whoever connects with a secret."""

    def talk(it: socket.socket) -> None:
        it.recv(4096)
        it.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + page)

    with accepting(listener, talk):
        yield


@contextlib.contextmanager
def accepting(listener: socket.socket, talk: Callable[[socket.socket], None]) -> Iterator[None]:
    """Talk to each client, in a thread of its own."""
    listener.listen()
    ended, threads = threading.Event(), []

    def one(it: socket.socket) -> None:
        with it, contextlib.suppress(OSError, ValueError, IndexError):
            it.settimeout(1)
            talk(it)

    def accept() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                it, _ = listener.accept()
                threads.append(threading.Thread(target=one, args=(it,)))
                threads[-1].start()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)  # which wakes the thread
        thread.join()
        for thread in threads:
            thread.join()


class OpenProxy:
    """A proxy that connects to everything, and that reads names as C does: up to a NUL.

    Attributes:
        port: Where it listens.
        password: What is asked for; empty for nothing.
    """

    def __init__(self) -> None:
        """Make a proxy that does not listen yet."""
        self.port = 0
        self.locked = 0
        self.password = secrets.token_hex(8)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Listen at two ports: one for everybody, and one for those who know the password."""
        with socket.create_server(("127.0.0.1", 0)) as everybody, socket.create_server(("127.0.0.1", 0)) as some:
            self.port, self.locked = everybody.getsockname()[1], some.getsockname()[1]
            with accepting(everybody, self._talk), accepting(some, self._ask):
                yield

    def _ask(self, it: socket.socket) -> None:
        expected = base64.b64encode(f"user:{self.password}".encode())
        if expected in it.recv(4096, socket.MSG_PEEK):
            self._talk(it)

    def _talk(self, it: socket.socket) -> None:
        request = it.recv(4096)
        if request.startswith(b"\5"):
            it.sendall(b"\5\0")
            asked = it.recv(4096)
            host, port, greeting = asked[5 : 5 + asked[4]], int.from_bytes(asked[-2:], "big"), b"\5\0\0\1\0\0\0\0\0\0"
        else:
            method, target, *_ = request.split(b" ")
            authority = target if method == b"CONNECT" else target.split(b"/")[2]
            host, _, number = authority.rpartition(b"@")[2].rpartition(b":")
            port, greeting = int(number), b"HTTP/1.1 200 OK\r\n\r\n" if method == b"CONNECT" else b""
        name = host.split(b"\0")[0].strip(b"[]").decode()
        with socket.create_connection((name, port), 1) as there:
            it.sendall(greeting)
            there.sendall(it.recv(4096) if greeting else request)
            while piece := there.recv(4096):
                it.sendall(piece)
