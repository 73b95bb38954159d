"""Kept connections to a tool server, and the answers on them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from cellblock.tools.calling import pool
from cellblock.tools.calling.pool import Address, Answer, BadAnswerError

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"
REQUEST = b"GET / HTTP/1.1\r\n\r\n"


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Nothing but sockets and threads, which each test closes and waits for."""
    yield
    pool.close()


class Server:
    """Answers what it is told to, and counts its connections."""

    def __init__(self, *answers: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: Address = self._listener.getsockname()[:2]
        self._answers = [*answers]
        self.connections = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while self._answers:
            connection, _ = self._listener.accept()
            self.connections += 1
            with connection:
                while self._answers and connection.recv(1000):
                    connection.sendall(answer := self._answers.pop(0))
                    if b"close" in answer or answer == b"":
                        break

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


@contextlib.contextmanager
def serving(*answers: bytes) -> Iterator[Server]:
    server = Server(*answers)
    try:
        yield server
    finally:
        pool.close()
        server.close()


@pytest.mark.parametrize("step", [1, 3, len(GOOD)])
def test_an_answer_is_the_same_however_it_is_cut(step: int) -> None:
    answer = Answer()
    complete = [answer.feed(GOOD[start : start + step]) for start in range(0, len(GOOD), step)]
    assert complete == [False] * (len(complete) - 1) + [True]
    assert (answer.status, answer.body, answer.keep) == (200, b"body", True)


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([b""], "ended before the answer"),
        ([GOOD[:-1], b""], "ended before the answer"),
        ([GOOD + b"x"], "more than one answer"),
        ([b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"], "not a tool server"),
        ([b"HTTP/1.1 abc\r\nContent-Length: 0\r\n\r\n"], "not a tool server"),
        ([b"HTTP/1.1 200 OK\r\n\r\n"], "not a tool server"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"], "not a tool server"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"], "not a tool server"),
        ([b"x" * 70_000], "headers have no end"),
    ],
)
def test_an_answer_that_is_none_is_an_error(pieces: list[bytes], said: str) -> None:
    answer = Answer()
    with pytest.raises(BadAnswerError, match=said):  # noqa: PT012  # only the last piece is wrong
        for piece in pieces:
            answer.feed(piece)


def test_a_connection_is_kept_and_used_again() -> None:
    with serving(GOOD, GOOD, GOOD) as server:
        assert [pool.send(server.address, REQUEST).body for _ in range(2)] == [b"body"] * 2
        assert asyncio.run(pool.send_async(server.address, REQUEST)).body == b"body"
        assert server.connections == 1


def test_a_connection_that_the_server_closes_is_not_kept() -> None:
    closing = GOOD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with serving(closing, GOOD) as server:
        assert pool.send(server.address, REQUEST).body == b"body"
        assert pool.send(server.address, REQUEST).body == b"body"
        assert server.connections == 2


def test_a_lost_connection_is_an_error_and_the_next_call_connects_again() -> None:
    with serving(b"", GOOD) as server:
        with pytest.raises(OSError, match="ended"):
            pool.send(server.address, REQUEST)
        assert pool.send(server.address, REQUEST).body == b"body"
        assert server.connections == 2


def test_a_call_that_is_cancelled_closes_its_connection() -> None:
    async def cancelled(address: Address) -> None:
        call = asyncio.create_task(pool.send_async(address, REQUEST))
        while not pool._state.busy:
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(cancelled(listener.getsockname()[:2]))
    assert not pool._state.busy
    assert not any(pool._state.idle.values())


def test_nobody_there_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
    with pytest.raises(ConnectionRefusedError):
        pool.send(address, REQUEST)
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(pool.send_async(address, REQUEST))
