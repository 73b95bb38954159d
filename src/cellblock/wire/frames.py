"""Frames: a length prefix, a small JSON header, and raw bytes.

The layout is in docs/wire.md. The parser takes bytes and returns frames. It never reads, blocks or guesses, and raises only
`ProtocolError`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from cellblock.errors import ProtocolError

VERSION = 6
MAX_HEADER = 64 * 1024
MAX_BODY = 5 * 1024 * 1024
MAX_DEPTH = 8

# Made once: `json.dumps` with options builds an encoder for every call. Not limited to ASCII, so that a lone surrogate is an
# error.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode
_PREFIX = struct.Struct("!II")


class Frame(NamedTuple):
    """A frame: a header with a ``type``, and raw bytes."""

    header: dict[str, Any]
    body: bytes


def encode_frame(header: dict[str, Any], body: bytes = b"", *, max_body: int = MAX_BODY) -> bytes:
    """Encode one frame.

    Args:
        header: JSON data with a ``type``.
        body: Raw bytes that follow it.
        max_body: Maximum size of the body in bytes.

    Raises:
        ProtocolError: The other side would not accept it: it is too large, nested too deeply, or not JSON.
    """
    return encode_head(header, len(body), max_body) + body


def encode_head(header: dict[str, Any], size: int, max_body: int) -> bytes:
    """Encode a frame up to its body, for callers that send a large body without copying it.

    Args:
        header: As for `encode_frame`.
        size: Size of the body in bytes.
        max_body: As for `encode_frame`.

    Raises:
        ProtocolError: As for `encode_frame`.
    """
    try:
        head = _encode(header).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a {header['type']} frame's header is not valid JSON: {error}") from None
    if head.count(b"[") + head.count(b"{") > MAX_DEPTH:  # otherwise it cannot be too deep
        _check_depth(header)
    if len(head) > MAX_HEADER or size > max_body:
        raise ProtocolError(
            f"a {header['type']} frame of {len(head)} + {size} bytes is over the limit of {MAX_HEADER} + {max_body}"
        )
    return _PREFIX.pack(len(head), size) + head


class FrameParser:
    """A parser of a byte stream into frames.

    After a `ProtocolError` the parser is unusable, because the stream may be out of step.

    Attributes:
        position: The total bytes of the returned frames.
    """

    __slots__ = ("_max_body", "_pending", "position")

    def __init__(self, max_body: int = MAX_BODY) -> None:
        """Start at the beginning of a stream.

        Args:
            max_body: Maximum size of a frame's body in bytes.
        """
        self._max_body = max_body
        self._pending = bytearray()
        self.position = 0

    def feed(self, data: bytes) -> list[Frame]:
        """Add received bytes. Return the complete frames, or raise as `frames`."""
        return list(self.frames(data))

    def frames(self, data: bytes) -> Iterator[Frame]:
        """Add received bytes, and yield the complete frames.

        Memory is bounded: less than one frame is kept between calls. Frames before an error are yielded before it is raised,
        so that the last messages of a worker before an invalid one count.

        Args:
            data: The bytes, split anywhere.

        Yields:
            Complete frames, in order.

        Raises:
            ProtocolError: A length exceeds its limit, or a header is not a JSON object with a type.
        """
        source: bytes | bytearray
        if self._pending:
            self._pending += data
            source = self._pending
        else:
            source = data
        start, available = 0, len(source)
        while available - start >= _PREFIX.size:
            head_size, body_size = _PREFIX.unpack_from(source, start)
            if head_size > MAX_HEADER or body_size > self._max_body:
                raise ProtocolError(f"a frame announces {head_size} + {body_size} bytes, over {MAX_HEADER} + {self._max_body}")
            body_start = start + _PREFIX.size + head_size
            end = body_start + body_size
            if end > available:
                break
            header = _parse_header(bytes(source[start + _PREFIX.size : body_start]))
            with memoryview(source) as view:
                frame = Frame(header, bytes(view[body_start:end]))
            self.position += end - start
            start = end
            yield frame
        if source is self._pending:
            del self._pending[:start]
        elif start < available:
            self._pending += memoryview(data)[start:]


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value


_decode = json.JSONDecoder(parse_constant=_reject_constant, parse_float=_finite).decode


def _parse_header(data: bytes) -> dict[str, Any]:
    try:
        header = _decode(data.decode("utf-8"))
        if b"\\u" in data:
            _encode(header).encode()  # an escape can produce a lone surrogate, which could not be encoded again
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a frame's header is not valid JSON: {error}") from None
    if not isinstance(header, dict) or not isinstance(header.get("type"), str):
        raise ProtocolError("a frame's header is not an object with a type")
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:  # as above
        _check_depth(header)
    return header


def _check_depth(header: dict[str, Any]) -> None:
    level: list[Any] = [header]
    for _ in range(MAX_DEPTH):
        inside = (item.values() if isinstance(item, dict) else item for item in level)
        level = [value for values in inside for value in values if isinstance(value, (dict, list, tuple))]
        if not level:
            return
    raise ProtocolError(f"a frame's header is nested more than {MAX_DEPTH} deep")
