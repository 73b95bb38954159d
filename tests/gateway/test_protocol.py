"""Clients that flood, that dawdle and that do not read."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import httpx
import pytest
import uvicorn

from cellblock.gateway import protocol
from gateways import Gateway, own_gateway, token

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


async def test_who_dawdles_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.05)
    monkeypatch.setattr(protocol, "READ_SECONDS", 0.05)

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100000000")]})
        for _ in range(100):
            await send({"type": "http.response.body", "body": bytes(1_000_000), "more_body": True})

    config = uvicorn.Config(app, http=protocol.BoundedHttp, lifespan="off", log_level="critical")
    config.load()
    state = uvicorn.server.ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: cast("Any", protocol.BoundedHttp)(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    async with server:
        port = server.sockets[0].getsockname()[1]
        for sent in (b"", b"GET / HTTP/1.1\r\nX: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            try:
                assert await asyncio.wait_for(reader.read(), 20) == b""
            except ConnectionError:
                pass
            writer.close()
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        async with asyncio.timeout(20):
            while state.connections:  # it is not read, and so it is ended
                await asyncio.sleep(0.01)
        sock.close()
    assert protocol.crowded(protocol.MAX_CONNECTIONS + 1)


async def test_a_body_that_stops_is_given_up(gateway: Gateway) -> None:
    with own_gateway(patience=0.1) as hasty:
        head = f"POST /kernels HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token('run')}\r\nContent-Length: 9\r\n"
        answer = await served(hasty, head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n{")
    assert b" 408 " in answer.splitlines()[0]
    assert b"too_slow" in answer
