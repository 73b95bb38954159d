"""Clients that flood, that dawdle and that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn

from cellblock.fronts.gateway import protocol
from cellblock.fronts.gateway.serve import encryption
from gateways import Gateway, certificate_for_localhost

pytestmark = pytest.mark.slow


async def served(gateway: Gateway, sent: bytes) -> bytes:
    """Send bytes until the server has closed the connection; return what it said."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    try:
        writer.write(sent)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_an_answer_comes_in_one_piece(gateway: Gateway) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    for _ in range(20):
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.read(65536)).endswith(b"}")
    writer.close()


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nX: " + b"a" * 5_000_000,
        b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 500_000,
        b"GET /" + b"a" * 5_000_000,
    ],
)
async def test_a_flood_of_headers_ends_its_connection(gateway: Gateway, api: httpx.Client, head: bytes) -> None:
    assert b" 200 " not in await served(gateway, head)
    assert api.get("/health").status_code == 200


@pytest.mark.parametrize("sent", [b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"])
async def test_garbage_ends_its_connection(gateway: Gateway, sent: bytes) -> None:
    assert b" 200 " not in await served(gateway, sent)


@asynccontextmanager
async def server(app: Any, kind: Any = protocol.BoundedHttp) -> AsyncIterator[tuple[int, uvicorn.server.ServerState]]:
    """Serve an application in this process; yield the port, and what the server knows."""
    config = uvicorn.Config(app, http=protocol.BoundedHttp, ws=protocol.BoundedWebSocket, lifespan="off", log_level="critical")
    config.load()
    state = uvicorn.server.ServerState()
    made = await asyncio.get_running_loop().create_server(
        lambda: kind(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    async with made:
        yield made.sockets[0].getsockname()[1], state


async def endless(_scope: Any, _receive: Any, send: Any) -> None:
    """Answer with more than any buffer holds."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100000000")]})
    for _ in range(100):
        await send({"type": "http.response.body", "body": bytes(1_000_000), "more_body": True})


async def brief(_scope: Any, _receive: Any, send: Any) -> None:
    """Answer and let the connection be kept."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def all_closed(state: uvicorn.server.ServerState) -> None:
    """Wait until the server has no connection."""
    async with asyncio.timeout(20):
        while state.connections:
            await asyncio.sleep(0.01)


async def test_a_head_of_a_request_has_a_limit() -> None:
    async with server(endless) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nX: " + b"a" * (protocol.MAX_HEAD + 1))  # and it does not end here
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
        writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nX: "])
async def test_who_dawdles_is_cut_off(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.05)
    async with server(endless) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()


async def test_who_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "READ_SECONDS", 0.05)
    async with server(endless) as (port, state):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            async with asyncio.timeout(20):
                while not state.total_requests and not state.connections:
                    await asyncio.sleep(0.01)
                while state.connections:
                    await asyncio.sleep(0.01)


async def refusing(_scope: Any, _receive: Any, send: Any) -> None:
    """Answer without reading the body."""
    await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"no"})


async def test_an_answer_arrives_though_nobody_reads_the_body() -> None:
    async with server(refusing) as (port, state):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\nConnection: close\r\n\r\n" + b"[" * 8_000_000)
        await writer.drain()
        assert (await asyncio.wait_for(reader.read(), 20)).endswith(b"no")
        writer.close()
        await all_closed(state)


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
async def test_the_rest_of_a_body_has_to_come(monkeypatch: pytest.MonkeyPatch, more: bytes) -> None:
    monkeypatch.setattr(protocol, "REST_SECONDS", 0.05)
    async with server(refusing) as (port, state):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n" + more + b"\r\n[")
        async with asyncio.timeout(20):
            assert await reader.readuntil(b"no")
            writer.write(b"[")  # from now on, it is no longer a connection without requests
            while state.connections:
                await asyncio.sleep(0.01)
        writer.close()


HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


async def test_a_wrong_handshake_is_answered() -> None:
    for more in (b"Content-Length: 9\r\n", b"X: y\r\n" * 200, b"X: " + b"y" * 9000 + b"\r\n"):
        async with server(refusing) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HANDSHAKE + more + b"\r\n")
            assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 400 ")
            writer.close()


@pytest.mark.parametrize("over_tls", [False, True])
async def test_a_turn_takes_few_frames(over_tls: bool, encrypted: tuple[type[protocol.BoundedHttp], ssl.SSLContext]) -> None:
    """What is encrypted comes in larger pieces, which are taken in several turns, too."""
    kind, options = (encrypted[0], {"ssl": encrypted[1], "server_hostname": "localhost"}) if over_tls else (None, {})
    sizes: list[int] = []
    received = asyncio.Event()

    async def accepting(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        (connection,) = state.connections
        parser = cast("Any", connection).conn
        take = parser.receive_data

        def spy(data: bytes) -> None:
            sizes.append(len(data))
            take(data)

        parser.receive_data = spy
        await send({"type": "websocket.accept"})
        assert (await receive())["text"] == "x"
        received.set()

    async with server(accepting, kind or protocol.BoundedHttp) as (port, state):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, **cast("Any", options))
        writer.write(HANDSHAKE + b"\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x8a\x80\0\0\0\0" * 20_000 + b"\x81\x81\0\0\0\0x")  # 20,000 pongs and a text
        async with asyncio.timeout(20):
            await received.wait()
        writer.close()
    assert max(sizes) <= protocol.WEBSOCKET_READ


@pytest.mark.parametrize("fragment", [b"\x00\x80\0\0\0\0", b"\x00\x82\0\0\0\0xx"], ids=["empty", "short"])
async def test_a_message_has_a_limited_number_of_fragments(fragment: bytes) -> None:
    heard: list[Any] = []
    left = asyncio.Event()

    async def accepting(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while not heard or heard[-1]["type"] != "websocket.disconnect":
            heard.append(await receive())
        left.set()

    async with server(accepting) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HANDSHAKE + b"\r\n")
        await reader.readuntil(b"\r\n\r\n")
        first, last = b"\x01\x81\0\0\0\0x", b"\x80\x80\0\0\0\0"
        writer.write(first + fragment * (protocol.MAX_FRAGMENTS - 2) + last)
        writer.write(first + fragment * 2 * protocol.MAX_FRAGMENTS)
        async with asyncio.timeout(20):
            await left.wait()
            with contextlib.suppress(ConnectionError):
                assert b"more than 10000 fragments" in await reader.read()
        writer.close()
    assert [message["type"] for message in heard] == ["websocket.receive", "websocket.disconnect"]
    assert len(heard[0]["text"]) == 1 + (protocol.MAX_FRAGMENTS - 2) * (len(fragment) - 6)


async def test_what_follows_a_body_is_dropped() -> None:
    headers: list[tuple[bytes, bytes]] = []

    async def reading(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        headers.extend(scope["headers"])
        await refusing(scope, receive, send)

    async with server(reading) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nHost: b\r\nX: y\r\n\r\n")
        assert await asyncio.wait_for(reader.readuntil(b"no"), 20)
        writer.close()
    assert [name for name, _ in headers] == [b"host", b"transfer-encoding"]


async def test_more_connections_than_may_be_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_CONNECTIONS", 3)
    async with server(endless) as (port, state):
        busy = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, writer in busy:
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert await reader.readline()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 20) == b""
        assert len(state.connections) == 3
        for _, each in (*busy, (reader, writer)):
            each.close()
        await all_closed(state)


async def test_connections_that_say_nothing_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_CONNECTIONS", 3)
    async with server(endless) as (port, state):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        async with asyncio.timeout(20):
            while len(state.connections) < 3:
                await asyncio.sleep(0.01)
        silent[1][1].write(b"GET / HTTP/1.1\r\n")  # it begins to speak: the others have waited longer
        async with asyncio.timeout(20):
            while not [*vars(state)["silent"]][-1]._head:
                await asyncio.sleep(0.01)
        asking = []
        for gone in (silent[0], silent[2]):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b" 200 " in await asyncio.wait_for(reader.readline(), 20)
            asking.append(writer)
            with suppress(ConnectionError):
                assert await asyncio.wait_for(gone[0].read(), 20) == b""
        silent[1][1].write(b"Host: a\r\n\r\n")
        assert b" 200 " in await asyncio.wait_for(silent[1][0].readline(), 20)
        for writer in (*asking, *(writer for _, writer in silent)):
            writer.close()
        await all_closed(state)
        assert vars(state)["silent"] == {}


async def test_as_many_are_closed_as_have_come_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_CONNECTIONS", 3)
    async with server(endless) as (port, state):
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]  # nothing else runs meanwhile
        async with asyncio.timeout(5):
            while not len(state.connections) == 3 == len(vars(state).get("silent", ())):
                await asyncio.sleep(0.01)
        for each in silent:
            each.close()
        await all_closed(state)


async def test_connections_that_are_kept_without_a_request_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_CONNECTIONS", 3)
    async with server(brief) as (port, state):
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, writer in kept:
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b" 200 " in await asyncio.wait_for(reader.readline(), 20)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 20)
        for _, each in (*kept, (reader, writer)):
            each.close()
        await all_closed(state)


@pytest.fixture
def encrypted(tmp_path: Path) -> tuple[type[protocol.BoundedHttp], ssl.SSLContext]:
    """Connections over TLS, and how a client begins them."""
    pair = certificate_for_localhost(tmp_path)

    class Encrypted(protocol.BoundedHttp):
        tls = encryption(*pair)

    return Encrypted, ssl.create_default_context(cafile=str(pair[0]))


async def test_handshakes_that_do_not_end_keep_nobody_out(
    monkeypatch: pytest.MonkeyPatch, encrypted: tuple[type[protocol.BoundedHttp], ssl.SSLContext]
) -> None:
    """A connection counts from its beginning, not only from the end of its handshake."""
    kind, context = encrypted
    monkeypatch.setattr(protocol, "MAX_CONNECTIONS", 3)
    async with server(brief, kind) as (port, state):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        silent[-1][1].write(b"\x16\x03\x01")  # the beginning of a handshake
        async with asyncio.timeout(20):
            while len(state.connections) != 3:
                await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 20)
        for _, each in (*silent, (reader, writer)):
            each.close()
        await all_closed(state)


async def test_a_handshake_has_to_end_soon(
    monkeypatch: pytest.MonkeyPatch, encrypted: tuple[type[protocol.BoundedHttp], ssl.SSLContext]
) -> None:
    kind, _ = encrypted
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    async with server(brief, kind) as (port, state):
        for sent in (b"", b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", bytes(70_000)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            with suppress(ConnectionError):
                assert b"HTTP/" not in await asyncio.wait_for(reader.read(), 20)
            writer.close()
        await all_closed(state)
        assert vars(state)["silent"] == {}


async def test_what_comes_together_with_the_end_of_a_handshake_is_read(
    encrypted: tuple[type[protocol.BoundedHttp], ssl.SSLContext],
) -> None:
    kind, context = encrypted
    async with server(brief, kind) as (port, state):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        client.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        writer.write(outgoing.read())  # the client's last word of the handshake, and its request
        incoming.write(await asyncio.wait_for(reader.read(65536), 20))
        answer = b""
        while b"ok" not in answer:
            try:
                answer += client.read(65536)
            except ssl.SSLWantReadError:
                incoming.write(await asyncio.wait_for(reader.read(65536), 20))
        assert answer.startswith(b"HTTP/1.1 200")
        writer.close()
        await all_closed(state)
