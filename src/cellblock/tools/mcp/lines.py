"""Cuts what a server writes into lines, within limits. Bytes in, lines out: no I/O."""

from __future__ import annotations

from dataclasses import dataclass

_EDGE = 256


@dataclass(frozen=True, slots=True)
class Oversized:
    """A line that was too long to keep.

    Attributes:
        head: Its first bytes.
        tail: Its last ones.
        size: How many it had.
    """

    head: bytes
    tail: bytes
    size: int


class Lines:
    """Whole lines out of pieces.

    Args:
        limit: The most bytes that a line may have; of a longer one only the edges are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line = bytearray()
        self._head: bytes | None = None
        self.size = 0
        """How many bytes the line has that has not ended yet."""

    def feed(self, data: bytes) -> list[bytes | Oversized]:
        """Take what was read next, and return the lines that end in it, without their ends."""
        *ended, rest = data.split(b"\n")
        found: list[bytes | Oversized] = []
        for piece in ended:
            self._add(piece)
            found.append(self._finish())
        self._add(rest)
        return found

    def _add(self, piece: bytes) -> None:
        self.size += len(piece)
        self._line += piece
        if self.size > self._limit:
            if self._head is None:
                self._head = bytes(self._line[:_EDGE])
            del self._line[:-_EDGE]

    def _finish(self) -> bytes | Oversized:
        line = bytes(self._line) if self._head is None else Oversized(self._head, bytes(self._line), self.size)
        self._line = bytearray()
        self._head, self.size = None, 0
        return line
