"""The WebSocket of approvals as a client that floods it uses it: bytes by hand, on a real connection."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest

from cellblock import ToolServer
from suite import first_quick

EMPTY = {"pings": b"\x89\x80\0\0\0\0", "parts of a message": b"\x00\x80\0\0\0\0"}
FIRST_PART = b"\x01\x81\0\0\0\0{"
CLOSE = b"\x88\x80\0\0\0\0"


@pytest.fixture
async def client(nothing_left_behind: None) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with ToolServer(port=0, approval_required=True) as server:
        reader, writer = await asyncio.open_connection("localhost", server.port)
        lines = ["GET /approval HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade"]
        lines += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}", "", ""]
        writer.write("\r\n".join(lines).encode())
        assert b"101 Switching" in await reader.readuntil(b"\r\n\r\n")
        yield reader, writer
        writer.close()


@pytest.mark.parametrize("kind", first_quick(EMPTY))
async def test_a_flood_of_tiny_frames_lets_the_loop_go_on(
    client: tuple[asyncio.StreamReader, asyncio.StreamWriter], kind: str
) -> None:
    reader, writer = client
    frames = 20_000
    ended, turns = asyncio.Event(), 0

    async def read() -> None:
        while await reader.read(65536):
            pass
        ended.set()

    reading = asyncio.create_task(read())
    writer.write((FIRST_PART if kind.startswith("parts") else b"") + EMPTY[kind] * frames + CLOSE)
    while not ended.is_set():
        turns += 1
        await asyncio.sleep(0)
    await reading
    assert turns > frames // 400  # 340 frames at a time


async def test_a_message_in_many_pieces_is_one_message(client: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    reader, writer = client
    text = b'{"jsonrpc": "2.0", "id": "nobody", "result": true}'.ljust(60_000)
    for part, opcode in ((text[:30_000], 0x01), (text[30_000:], 0x80)):
        writer.write(bytes((opcode, 0xFE)) + len(part).to_bytes(2, "big") + bytes(4) + part)
        await writer.drain()
    writer.write(b"\x89\x81\0\0\0\0!")
    assert await reader.readexactly(2) in (b"\x89\x00", b"\x8a\x01")  # a ping of the server, or the answer to ours
