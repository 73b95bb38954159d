"""Control messages between host, zygote and init: one small JSON object in one datagram of a SOCK_SEQPACKET socket.

On a stream socket two messages can arrive as one, and a descriptor passed with the second is then silently dropped.
"""

from __future__ import annotations

import json
from typing import Any

from cellblock.errors import ProtocolError

MAX_CONTROL = 160 * 1024
"""Largest message, in bytes: below what the kernel lets a datagram carry with its default buffers."""

MAX_DESCRIPTORS = 8

EXIT_NO_IPYTHON = 65
EXIT_PRELOAD = 66
"""How a zygote, or a fresh interpreter, exits that cannot become one: see `worker.warm`."""

FORK_DESCRIPTORS = 4
"""What comes with ``fork``: the worker's channel, init's control socket, and the write ends of the two output pipes."""


def encode_control(op: str, **fields: Any) -> bytes:
    """Return one message.

    Raises:
        ProtocolError: It is larger than one datagram may be.
    """
    data = json.dumps({"op": op, **fields}, separators=(",", ":")).encode()
    if len(data) > MAX_CONTROL:
        raise ProtocolError(f"a {op!r} message of {len(data)} bytes is over the limit of {MAX_CONTROL}")
    return data


def decode_control(data: bytes) -> dict[str, Any]:
    """Return the fields of one message; ``op`` is always a string.

    Raises:
        ProtocolError: It is no JSON object with an ``op``.
    """
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a control message is no JSON: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("op"), str):
        raise ProtocolError("a control message is no object with an op")
    return message
