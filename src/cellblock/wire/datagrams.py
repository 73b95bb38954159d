"""Encodes control messages: one JSON object per datagram of a SOCK_SEQPACKET socket.

On a stream socket two messages can arrive as one, and a descriptor passed with the second is then silently dropped.
"""

from __future__ import annotations

import json
from typing import ClassVar, Generic, Protocol, TypeVar

from cellblock.errors import ProtocolError
from cellblock.wire.codec import decoder, encoder

MAX_CONTROL = 160 * 1024
"""Largest message, in bytes: below the kernel's limit for a datagram with default buffers."""

MAX_DESCRIPTORS = 8

_encode = json.JSONEncoder(separators=(",", ":")).encode  # made once: `json.dumps` with options builds one for every call


class ControlMessage(Protocol):
    """A named message: a record of `wire.control` or `wire.copies`."""

    op: ClassVar[str]


_M = TypeVar("_M", bound=ControlMessage)


def encode_control(message: ControlMessage, most: int = MAX_CONTROL) -> bytes:
    """Encode one message.

    Args:
        message: The message.
        most: Maximum size in bytes; above a datagram's for a message in a file.

    Raises:
        ProtocolError: It is too large.
    """
    convert = encoder(type(message))
    assert convert is not None
    data = _encode({"op": message.op, **convert(message)}).encode()
    if len(data) > most:
        raise ProtocolError(f"a {message.op!r} message of {len(data)} bytes is over the limit of {most}")
    return data


class Incoming(Generic[_M]):
    """The accepted messages of one end of a connection."""

    def __init__(self, *kinds: type[_M]) -> None:
        self.kinds: dict[str, type[_M]] = {kind.op: kind for kind in kinds}

    def decode(self, data: bytes) -> _M:
        """Decode one message.

        Raises:
            ProtocolError: It is not accepted here, or a field is missing, unknown or of the wrong type.
        """
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"a control message is not valid JSON: {error}") from None
        op = fields.pop("op", None) if isinstance(fields, dict) else None
        if not isinstance(op, str) or op not in self.kinds:
            raise ProtocolError(f"a control message has no op that may be sent here: {', '.join(self.kinds)}")
        try:
            message: _M = decoder(self.kinds[op])(fields)
        except ProtocolError as error:
            raise ProtocolError(f"a {op!r} message is wrong: {error}") from None
        return message

    def read(self, data: bytes) -> _M:
        """Decode a message with plain fields from a trusted sender, without checks, which saves a fresh fork 100 pages."""
        fields = json.loads(data.decode())
        return self.kinds[fields.pop("op")](**fields)
