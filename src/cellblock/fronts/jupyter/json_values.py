"""Counts values of JSON before it is parsed: ten megabytes of ``[],[],…`` take seconds, and a text of that size does not."""

from __future__ import annotations

MAX_VALUES = 50_000
"""Values of one message: parsing and checking so many takes less than 50 ms."""


class ValueCounter:
    """Counts values in JSON that comes in pieces, about: commas and opening brackets outside of strings, and quotes.

    What is not JSON has some count, too.
    """

    __slots__ = ("_escaping", "_outside", "_quotes")

    def __init__(self) -> None:
        self._quotes = 0
        self._outside = 0
        self._escaping = b""

    def feed(self, piece: bytes) -> int:
        """Take the next piece; return how many values there are so far."""
        if b"\\" in piece or self._escaping:
            piece = (self._escaping + piece).replace(b"\\\\", b"")
            self._escaping = b"\\" if piece.endswith(b"\\") else b""
            piece = piece.removesuffix(b"\\").replace(b'\\"', b"")
        in_string = self._quotes % 2
        self._quotes += piece.count(b'"')
        if self._quotes <= 2 * MAX_VALUES:  # else it is decided, and there would be many parts
            for outside in piece.split(b'"')[in_string::2]:
                self._outside += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        return self._outside + self._quotes // 2


def has_too_many_values(data: bytes) -> bool:
    """Return whether JSON has more values than may be parsed at once."""
    return len(data) > MAX_VALUES and ValueCounter().feed(data) > MAX_VALUES
