"""WebSockets of opened connections: the request that opens one, and the bytes after it, which nothing inspects."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import h11

from cellblock.walls.egress.ends import End

_READ = 64 * 1024


def asks_for_websocket(head: h11.Request) -> bool:
    """Return whether a request asks for a WebSocket, and for nothing else."""
    headers = [*head.headers]
    wanted = [value.strip().lower() for name, value in headers if name == b"upgrade"]
    if wanted != [b"websocket"]:
        return False
    named = [one.strip().lower() for name, value in headers if name == b"connection" for one in value.split(b",")]
    framed = any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)
    return b"upgrade" in named and head.method == b"GET" and not framed


async def relay(client: End, upstream: End, to_upstream: bytes, to_client: bytes, idle_seconds: float) -> None:
    """Move bytes in both directions until one side ends, or both are silent for too long.

    Args:
        client: The client.
        upstream: The server.
        to_upstream: Bytes that the client sent ahead.
        to_client: Bytes that the server sent ahead.
        idle_seconds: Time for which both may be silent.
    """
    loop = asyncio.get_running_loop()

    async def move(source: End, sink: End, data: bytes) -> None:
        if data:
            await sink.send(data)
        while data := await source.receive(_READ):
            silence.reschedule(loop.time() + idle_seconds)
            await sink.send(data)

    with suppress(TimeoutError):
        async with asyncio.timeout(idle_seconds) as silence:
            moving = [
                asyncio.create_task(move(client, upstream, to_upstream)),
                asyncio.create_task(move(upstream, client, to_client)),
            ]
            try:
                await asyncio.wait(moving, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in moving:
                    task.cancel()
                await asyncio.gather(*moving, return_exceptions=True)
