"""HTTP as tool ports speak it: what any client may rely on, and what none can use to have more than its share."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from cellblock.tools.serving import http
from cellblock.tools.serving.http import Request
from cellblock.tools.serving.listen import HttpServer
from clocks import Clock
from processes import eventually

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


LARGE = 8_000_000
"""Bytes, more than the buffers of a connection take."""


class Echo:
    """Answers with what it was sent, when it is allowed to."""

    def __init__(self) -> None:
        self.begun: list[Request] = []
        self.cancelled = 0
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, request: Request) -> tuple[int, bytes]:
        self.begun.append(request)
        if request.path == "/refused":
            return 413, b"no"
        if request.path == "/large":
            return 200, b"x" * LARGE
        if request.path == "/lost":
            raise asyncio.CancelledError
        body = await request.body()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return 200, body


@contextlib.asynccontextmanager
async def served(app: Echo) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Serve an application, and connect to it."""
    listener = socket.create_server(("127.0.0.1", 0))
    listening = HttpServer(app, [listener])
    await listening.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
    try:
        yield reader, writer
    finally:
        writer.close()
        await listening.stop()


def post(body: bytes, *headers: str, path: str = "/", version: str = "1.1", method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: x", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def answer(reader: asyncio.StreamReader, *, body: bool = True) -> tuple[bytes, bytes]:
    """Return head and body of the next answer."""
    async with asyncio.timeout(10):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return head, await reader.readexactly(length) if body else b""


async def connections(listening: HttpServer) -> set[http.Connection]:
    """Return the connections of a port, once there are any."""
    await eventually(lambda: listening._port.connections)
    return listening._port.connections


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the end of the connection."""
    async with asyncio.timeout(10):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def test_requests_follow_one_another_on_one_connection() -> None:
    async with served(Echo()) as (reader, writer):
        for number in range(3):
            writer.write(post(b"%d" % number))
            head, body = await answer(reader)
            assert head.startswith(b"http/1.1 200 ok\r\n")
            assert b"connection:" not in head
            assert body == b"%d" % number


async def test_a_request_in_many_pieces_is_one_request() -> None:
    async with served(Echo()) as (reader, writer):
        for byte in post(b"hello", path="/a%20b?c"):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert (await answer(reader))[1] == b"hello"


async def test_a_path_is_told_without_its_query_and_escapes() -> None:
    app = Echo()
    async with served(app) as (reader, writer):
        writer.write(post(b"", path="/a%20b?c=d"))
        await answer(reader)
    assert (app.begun[0].method, app.begun[0].path) == ("POST", "/a b")


async def test_a_client_that_wants_no_second_answer_gets_one_and_the_end() -> None:
    for data in (post(b"x", "Connection: close"), post(b"x", version="1.0")):
        async with served(Echo()) as (reader, writer):
            writer.write(data)
            assert (await ended(reader)).lower().endswith(b"connection: close\r\n\r\nx")


async def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    async with served(Echo()) as (reader, writer):
        whole = post(b"hello", "Expect: 100-continue")
        writer.write(whole[:-5])
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(whole[-5:])
        assert (await answer(reader))[1] == b"hello"


async def test_head_has_no_body() -> None:
    async with served(Echo()) as (reader, writer):
        writer.write(post(b"hello", method="HEAD"))
        assert b"content-length: 5\r\n" in (await answer(reader, body=False))[0]
        writer.write(post(b"next"))
        assert (await answer(reader))[1] == b"next"


async def test_a_client_that_offers_another_protocol_is_answered_in_this_one() -> None:
    async with served(Echo()) as (reader, writer):
        writer.write(post(b"", "Connection: Upgrade", "Upgrade: h2c"))
        assert (await answer(reader))[0].startswith(b"http/1.1 200")
        assert await ended(reader) == b"", "what comes next may be either"


async def test_nobody_waits_for_an_answer_that_was_lost() -> None:
    async with served(Echo()) as (reader, writer):
        writer.write(post(b"", path="/lost"))
        assert await ended(reader) == b""


async def test_what_was_refused_by_its_head_may_go_on_and_its_body_is_not_kept() -> None:
    app = Echo()
    async with served(app) as (reader, writer):
        refused = post(b"x" * 200_000, path="/refused")
        writer.write(refused[:-100_000])
        assert (await answer(reader))[0].startswith(b"http/1.1 413")
        writer.write(refused[-100_000:])
        await writer.drain()
        writer.write(post(b"next"))
        assert (await answer(reader))[1] == b"next"
        assert len(await app.begun[0].body()) <= 100_000
    assert [request.path for request in app.begun] == ["/refused", "/"]


@pytest.mark.parametrize("second", [post(b"two"), b"PO"])
async def test_a_request_ahead_of_the_answer_before_it_ends_the_connection(second: bytes) -> None:
    app = Echo()
    app.go.clear()
    async with served(app) as (reader, writer):
        writer.write(post(b"one"))
        await eventually(lambda: app.begun)
        writer.write(second)
        assert await ended(reader) == b""
        await eventually(lambda: app.cancelled)
        assert len(app.begun) == 1


async def test_a_client_that_does_not_read_its_answers_is_not_read_any_further() -> None:
    app, listener = Echo(), socket.create_server(("127.0.0.1", 0))
    listening = HttpServer(app, [listener])
    await listening.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # it can, whatever its type says
    (connection,) = await connections(listening)
    writer.write(post(b"", path="/large"))
    await eventually(lambda: app.begun and not connection.transport.is_reading())
    writer.write(post(b"", path="/large"))
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(2):
        assert len((await answer(reader))[1]) == LARGE
    writer.close()
    await listening.stop()


async def test_an_idle_connection_is_closed_and_one_that_is_used_is_not() -> None:
    app = Echo()
    with Clock() as clock:
        async with served(app) as (reader, writer):
            for _ in range(4):
                writer.write(post(b"one"))
                await answer(reader)
                await clock.advance(http.IDLE / 2)
            app.go.clear()
            writer.write(post(b"two"))
            await eventually(lambda: len(app.begun) == 5)
            for _ in range(3):
                await clock.advance(http.IDLE)
            app.go.set()
            assert (await answer(reader))[1] == b"two", "it is not idle while it waits for an answer"
            await clock.advance(http.IDLE / 2)
            writer.write(post(b"three"))
            assert (await answer(reader))[1] == b"three"
            await clock.advance(http.IDLE)
            assert await ended(reader) == b""


async def test_stopping_lets_an_answer_that_is_on_its_way_come() -> None:
    app = Echo()
    app.go.clear()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listening = HttpServer(app, [listener])
    await listening.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    idle, other = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post(b"one"))
    await eventually(lambda: app.begun)
    stopping = asyncio.create_task(listening.stop())
    assert await ended(idle) == b""
    app.go.set()
    assert (await ended(reader)).lower().endswith(b"connection: close\r\n\r\none")
    await stopping
    await listening.join()
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    other.close()
