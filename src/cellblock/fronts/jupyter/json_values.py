"""Counts the values of JSON before it is parsed: many small values take seconds, a long text does not."""

from __future__ import annotations

MAX_VALUES = 50_000
"""Most values of one message: parsing and checking this many takes less than 50 ms."""


class ValueCounter:
    """Estimates the number of values in JSON that arrives in pieces: commas and opening brackets outside strings, and quotes.

    Text that is not JSON gets some count, too.
    """

    __slots__ = ("_escaping", "_outside", "_quotes")

    def __init__(self) -> None:
        self._quotes = 0
        self._outside = 0
        self._escaping = b""

    def feed(self, piece: bytes) -> int:
        """Add the next piece; return the number of values so far."""
        if b"\\" in piece or self._escaping:
            piece = (self._escaping + piece).replace(b"\\\\", b"")
            self._escaping = b"\\" if piece.endswith(b"\\") else b""
            piece = piece.removesuffix(b"\\").replace(b'\\"', b"")
        in_string = self._quotes % 2
        self._quotes += piece.count(b'"')
        if self._quotes <= 2 * MAX_VALUES:  # beyond that, the result is known, and there would be many parts
            for outside in piece.split(b'"')[in_string::2]:
                self._outside += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        return self._outside + self._quotes // 2


def has_too_many_values(data: bytes) -> bool:
    """Return whether JSON has more values than may be parsed at once."""
    return len(data) > MAX_VALUES and ValueCounter().feed(data) > MAX_VALUES
