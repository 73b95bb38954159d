"""What a tunnel carries: both directions, half-closes, back-pressure, and ends."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket

import pytest

from processes import eventually

from .conftest import Starter, to_web, tunnel


async def test_tunnel_carries_megabytes_both_ways(start: Starter) -> None:
    port = await start.echo()
    running = await to_web(start, port)
    reader, writer = await tunnel(running, port)
    data = os.urandom(8_000_000)

    async def send() -> None:
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    got = await reader.read(-1)
    await sending
    assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
    writer.close()


async def test_tunnel_half_closes(start: Starter) -> None:
    async def after_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"you said " + await reader.read(-1))
        await writer.drain()

    port = await start.server(after_the_end)
    running = await to_web(start, port)
    reader, writer = await tunnel(running, port)
    writer.write(b"this")
    writer.write_eof()
    assert await reader.read() == b"you said this"
    writer.close()


async def test_tunnel_pushes_back(start: Starter) -> None:
    """A server that does not read stops the client, not the memory of the host."""
    release = asyncio.Event()

    async def stalled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await release.wait()

    port = await start.server(stalled)
    running = await to_web(start, port)
    client = socket.create_connection(("127.0.0.1", running.port))
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, f"CONNECT web.test:{port} HTTP/1.1\r\nHost: web.test:{port}\r\n\r\n".encode())
    assert await loop.sock_recv(client, 100)
    sent = 0
    for _ in range(1000):
        try:
            async with asyncio.timeout(0.2):
                await loop.sock_sendall(client, bytes(1_000_000))
        except TimeoutError:
            break
        sent += 1
    assert sent < 100  # megabytes, in the kernel's buffers
    client.close()
    release.set()


async def test_tunnel_breaks_when_the_server_does(start: Starter) -> None:
    async def breaking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    port = await start.server(breaking)
    running = await to_web(start, port)
    reader, writer = await tunnel(running, port)
    writer.write(b"!")
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
    await eventually(lambda: running.connections == 0)
