"""Reads the body of a request, and inserts secrets into JSON and forms."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import h11

from cellblock.common.turns import turns
from cellblock.walls.egress.ends import End
from cellblock.walls.egress.http import CHUNKED_READ, Headers, check_between_chunks
from cellblock.walls.egress.tunnel import BUFFER

MOST_REPLACED = 256 * 1024
"""Bytes of a body into which secrets are inserted."""
_FORM = b"application/x-www-form-urlencoded"


async def read_body(reader: h11.Connection, end: End, idle_seconds: float, most: int, *, chunked: bool) -> bytes | None:
    """Read the body of the present request. Return None if it has more than `most` bytes.

    Args:
        reader: The h11 connection that parsed the head.
        end: The client.
        idle_seconds: Time for which the client may be silent.
        most: The limit.
        chunked: Whether its length was not declared.

    Raises:
        h11.RemoteProtocolError: The client violated the protocol.
        OSError: The client has hung up, or was silent for too long.
    """
    if reader.they_are_waiting_for_100_continue:
        await end.send(reader.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
    found = bytearray()
    while True:
        await turns().give_way()
        event = reader.next_event()
        if event is h11.NEED_DATA:
            if chunked:
                check_between_chunks(reader)
            async with asyncio.timeout(idle_seconds):
                reader.receive_data(await end.receive(CHUNKED_READ if chunked else BUFFER))
        elif isinstance(event, h11.EndOfMessage):
            return bytes(found)
        else:
            assert isinstance(event, h11.Data)
            found += event.data
            if len(found) > most:
                return None


def inserts_at(at: str, secrets: Sequence[dict[str, Any]]) -> list[tuple[str, bytes, str]]:
    """Return the secrets that bodies for a host can contain: their names, placeholders and values.

    Args:
        at: The host as ``host:port``.
        secrets: The secrets of the session (`bindings.described`).
    """
    return [
        (secret["name"], secret["placeholder"].encode(), secret["value"])
        for secret in secrets
        if not secret["removed"] and any(use["body"] and at in use["hosts"] for use in secret["uses"])
    ]


def quoting(headers: Headers) -> Callable[[str], bytes] | None:
    """Return the function that encodes a secret for the type of a body; None for types without secrets."""
    if any(name.lower() == b"content-encoding" for name, _ in headers):
        return None
    types = [value.partition(b";")[0].strip().lower() for name, value in headers if name.lower() == b"content-type"]
    if len(types) != 1:
        return None
    if types[0] == _FORM:
        return lambda value: quote(value, safe="").encode()
    if types[0] == b"application/json" or types[0].endswith(b"+json"):
        return lambda value: json.dumps(value)[1:-1].encode()
    return None


def length_of(headers: Headers) -> int | None:
    """Return the declared length of a body: 0 without a body, and None if it is chunked."""
    if any(name.lower() == b"transfer-encoding" for name, _ in headers):
        return None
    return next((int(value) for name, value in headers if name.lower() == b"content-length"), 0)


def with_length(headers: Headers, length: int) -> Headers:
    """Return the headers of a request whose whole body was read."""
    replaced = (b"content-length", b"transfer-encoding", b"expect")
    return [*(one for one in headers if one[0].lower() not in replaced), (b"Content-Length", str(length).encode())]
