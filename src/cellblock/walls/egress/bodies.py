"""Reads the whole body of a request: for a person to decide about, or to insert secrets."""

from __future__ import annotations

import asyncio

import h11

from cellblock.common.turns import turns
from cellblock.walls.egress.ends import End
from cellblock.walls.egress.http import CHUNKED_READ, check_between_chunks
from cellblock.walls.egress.judge import MOST_BODY


async def read_body(reader: h11.Connection, end: End, idle_seconds: float, most: int = MOST_BODY) -> bytes | None:
    """Read the body of the present request. Return None if it is too large.

    Args:
        reader: The h11 connection that parsed the head.
        end: The client.
        idle_seconds: Time for which the client may be silent.
        most: Its largest size in bytes.

    Raises:
        h11.RemoteProtocolError: The client violated the protocol.
        OSError: The client has hung up, or was silent for too long.
    """
    if reader.they_are_waiting_for_100_continue:
        interim = h11.InformationalResponse(status_code=100, headers=[])
        await end.send(reader.send(interim) or b"")
    found = bytearray()
    while True:
        await turns().give_way()
        event = reader.next_event()
        if event is h11.NEED_DATA:
            check_between_chunks(reader)
            async with asyncio.timeout(idle_seconds):
                reader.receive_data(await end.receive(CHUNKED_READ * 4))
            continue
        if isinstance(event, h11.EndOfMessage):
            return bytes(found)
        assert isinstance(event, h11.Data)
        found += event.data
        if len(found) > most:
            return None
