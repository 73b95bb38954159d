"""A splitter of a server's output into lines, with limits, without I/O."""

from __future__ import annotations

from dataclasses import dataclass

_EDGE = 256


@dataclass(frozen=True, slots=True)
class Oversized:
    """A line that was too long to keep.

    Attributes:
        head: Its first bytes.
        tail: Its last bytes.
        size: Its length in bytes.
    """

    head: bytes
    tail: bytes
    size: int


def edges(line: bytes) -> Oversized:
    """Return the kept ends of a refused line."""
    return Oversized(line[:_EDGE], line[-_EDGE:], len(line))


class Lines:
    """A line splitter that yields one line at a time, because splitting a whole piece at once could take long.

    Args:
        limit: Maximum bytes of a line; only the ends of a longer one are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self._scanned = 0  # bytes of the data without a line feed
        self._head: bytes | None = None  # of a line that is too long; `_data` then has its end
        self._dropped = 0

    @property
    def waiting(self) -> int:
        """The number of bytes that were not returned yet."""
        return len(self._data) - self._scanned

    @property
    def size(self) -> int:
        """The length so far of the line that was incomplete at the last call of `next`."""
        return self._dropped + self._scanned

    def feed(self, data: bytes) -> None:
        """Add the next bytes."""
        self._data += data

    def next(self) -> bytes | Oversized | None:
        """Return the next line without its line end; None if no line is complete."""
        end = self._data.find(b"\n", self._scanned)
        if end < 0:
            self._scanned = len(self._data)
            if self.size > self._limit:
                self._drop()
            return None
        size = self._dropped + end
        line: bytes | Oversized
        if size > self._limit:
            head = bytes(self._data[:_EDGE]) if self._head is None else self._head
            line = Oversized(head, bytes(self._data[max(0, end - _EDGE) : end]), size)
        else:
            with memoryview(self._data) as data:
                line = bytes(data[:end])  # one copy: it can be large
        del self._data[: end + 1]
        self._scanned, self._dropped, self._head = 0, 0, None
        return line

    def clear(self) -> None:
        """Drop all data."""
        self._data.clear()
        self._scanned, self._dropped, self._head = 0, 0, None

    def _drop(self) -> None:
        if self._head is None:
            self._head = bytes(self._data[:_EDGE])
        self._dropped += len(self._data) - _EDGE
        del self._data[:-_EDGE]
        self._scanned = len(self._data)
