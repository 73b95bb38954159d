"""Serves the client of a proxy, with or without TLS: reads its requests, and answers those that are refused."""

from __future__ import annotations

import asyncio

import h11

from cellblock.common.turns import turns
from cellblock.walls.egress.ends import End
from cellblock.walls.egress.exchange import HEAD_READ
from cellblock.walls.egress.gate import DeniedError, UnreachableError
from cellblock.walls.egress.http import (
    CHUNKED_READ,
    check_between_chunks,
    check_head,
    plain_response,
    wants_json,
)
from cellblock.walls.egress.judge import MOST_BODY
from cellblock.walls.egress.rules import RefusedError

FAILURES = (RefusedError, DeniedError, UnreachableError, h11.RemoteProtocolError)
"""What `answer_failure` answers."""
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 1024 * 1024


async def read_head(reader: h11.Connection, client: End, idle_seconds: float, head_seconds: float) -> h11.Request | None:
    """Read the head of the next request. Return None if the client has hung up.

    Args:
        reader: The h11 connection of the client.
        client: The client.
        idle_seconds: Time until its first byte.
        head_seconds: Time from its first byte to its last.

    Raises:
        RefusedError: The head took too long.
        h11.RemoteProtocolError: The client violated the protocol.
        OSError: The client was silent, or the connection is broken.
    """
    if reader.trailing_data == (b"", False):
        async with asyncio.timeout(idle_seconds):
            reader.receive_data(await client.receive(HEAD_READ))
    if (event := await _next_event(reader)) is h11.NEED_DATA:
        try:
            async with asyncio.timeout(head_seconds):
                while event is h11.NEED_DATA:
                    reader.receive_data(await client.receive(HEAD_READ))
                    event = await _next_event(reader)
        except TimeoutError as error:
            text = f"the head of the request did not come within {head_seconds:g} s"
            raise RefusedError(408, text, final=False) from error
    return event if isinstance(event, h11.Request) else None


async def _next_event(reader: h11.Connection) -> object:
    await turns().give_way()
    check_head(reader)
    return reader.next_event()


async def read_body(reader: h11.Connection, client: End, idle_seconds: float, most: int = MOST_BODY) -> bytes:
    """Read the body of the present request. If it is larger than `most`, return its first `most` + 1 bytes.

    Args:
        reader: The h11 connection that parsed the head.
        client: The client.
        idle_seconds: Time for which the client may be silent.
        most: The largest size in bytes.

    Raises:
        h11.RemoteProtocolError: The client violated the protocol.
        OSError: The client has hung up, or was silent for too long.
    """
    if reader.they_are_waiting_for_100_continue:
        interim = h11.InformationalResponse(status_code=100, headers=[])
        await client.send(reader.send(interim) or b"")
    found = bytearray()
    while len(found) <= most:
        await turns().give_way()
        event = reader.next_event()
        if event is h11.NEED_DATA:
            check_between_chunks(reader)
            async with asyncio.timeout(idle_seconds):
                reader.receive_data(await client.receive(CHUNKED_READ * 4))
            continue
        if isinstance(event, h11.EndOfMessage):
            break
        assert isinstance(event, h11.Data)
        found += event.data
    return bytes(found[: most + 1])


def refusal_of(error: Exception) -> RefusedError:
    """Return the answer to one of `FAILURES`."""
    match error:
        case RefusedError():
            return error
        case DeniedError(denial=denial):
            # Many clients show only the reason phrase of a failed CONNECT.
            return RefusedError(403, denial.message, reason=f"Forbidden: {denial.reason}{denial.remedy}")
        case UnreachableError():
            return RefusedError(504 if error.cause == "timeout" else 502, str(error), final=False)
        case _:
            hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
            return RefusedError(hint if hint in (431, 501) else 400, f"bad request: {error}", final=hint == 400)


async def answer_failure(client: End, error: Exception, head: h11.Request | None) -> None:
    """Answer a request that failed, and hang up."""
    refused = refusal_of(error)
    answer = plain_response(
        refused.status,
        refused.reason,
        f"cellblock: {refused}",
        body=head is None or head.method != b"HEAD",
        as_json=refused.status == 403 and head is not None and wants_json(head.headers),
        final=refused.final,
    )
    await hang_up(client, answer)


async def hang_up(client: End, last: bytes = b"") -> None:
    """Send the last bytes, and wait for their arrival: closing with unread bytes would discard them in transit."""
    if last:
        await client.send(last)
    client.end()
    left = _LINGER_BYTES
    async with asyncio.timeout(_LINGER_SECONDS):
        while left > 0 and (data := await client.receive(HEAD_READ)):
            left -= len(data)
