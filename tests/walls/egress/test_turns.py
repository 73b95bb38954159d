"""A client or a server that is always ready does not hold the loop up; heads and trailers have limits beside their bytes."""

from __future__ import annotations

import asyncio
import socket
import threading

import h11
import pytest

from suite import first_quick

from .conftest import Starter

CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
TINY = b"1\r\nx\r\n" * 30_000 + b"0\r\n\r\n"


def request(port: int, more: bytes = b"\r\n", method: bytes = b"GET") -> bytes:
    address = b"127.0.0.1:%d" % port
    return method + b" http://" + address + b"/ HTTP/1.1\r\nHost: " + address + b"\r\nConnection: close\r\n" + more


class Server(threading.Thread):
    """Answers one connection, in a thread, so that the loop has nothing to do but to be the proxy."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.start()

    def run(self) -> None:
        with self._listener, self._listener.accept()[0] as client:
            client.sendall(self._answer)
            while client.recv(2**20):
                pass


def ask(port: int, data: bytes) -> bytes:
    """Send a request, in a thread, and return what comes back."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        got = b""
        while piece := client.recv(2**20):
            got += piece
        sender.join()
        return got


@pytest.mark.parametrize("way", first_quick(["request", "response"]))
async def test_tiny_chunks_let_the_loop_go_on(way: str, start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = most = 0
    original = h11.Connection.next_event

    def counted(self: h11.Connection) -> object:
        nonlocal parsed
        parsed += 1
        return original(self)

    async def tick() -> None:
        nonlocal most
        while True:
            before = parsed
            await asyncio.sleep(0)
            most = max(most, parsed - before)

    monkeypatch.setattr(h11.Connection, "next_event", counted)
    head = b"HTTP/1.1 200 OK\r\n"
    server = Server(head + CHUNKED + TINY if way == "response" else head + b"Content-Length: 0\r\n\r\n")
    running = await start.proxy(f"127.0.0.1:{server.port}")
    ticking = asyncio.create_task(tick())
    data = request(server.port) if way == "response" else request(server.port, CHUNKED + TINY, b"POST")
    got = await asyncio.to_thread(ask, running.port, data)
    ticking.cancel()
    await asyncio.to_thread(server.join)
    assert got.startswith(b"HTTP/1.1 200")
    if way == "response":
        assert got.count(b"1\r\nx\r\n") == 30_000
    assert parsed > 500
    assert most < 8_000


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 102 Processing\r\n\r\n" * 100 + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"interim responses"),
        (b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * 600 + b"Content-Length: 0\r\n\r\n", b"500 header lines"),
    ],
    ids=["interim responses", "header lines"],
)
async def test_a_response_that_takes_long_to_read_is_refused(answer: bytes, said: bytes, start: Starter) -> None:
    port, _ = await start.http(answer)
    running = await start.proxy(f"127.0.0.1:{port}")
    got = await running.ask(request(port))
    assert got.rpartition(b"HTTP/1.1 502")[1]
    assert said in got


async def test_a_request_with_too_many_header_lines_is_refused(start: Starter) -> None:
    running = await start.proxy("127.0.0.1")
    assert (await running.ask(request(80, b"a:\r\n" * 600 + b"\r\n"))).startswith(b"HTTP/1.1 431")


async def test_trailers_without_end_are_refused(start: Starter) -> None:
    trailers = b"5\r\nhello\r\n0\r\n" + b"a:\r\n" * 4000 + b"\r\n"
    port, heard = await start.http(b"HTTP/1.1 200 OK\r\n" + CHUNKED + trailers)
    running = await start.proxy(f"127.0.0.1:{port}")
    assert not (await running.ask(request(port))).endswith(b"0\r\n\r\n")
    await running.ask(request(port, CHUNKED + trailers, b"POST"))
    assert not heard[-1].endswith(b"0\r\n\r\n")
