"""A parser of server-sent events with limits, without I/O."""

from __future__ import annotations

from codecs import BOM_UTF8
from dataclasses import dataclass

from cellblock.tools.mcp.lines import Lines, Oversized

_MAX_LINES = 150_000  # of one event
_NAMES = frozenset((b"", b"message", b"endpoint"))
"""Events that MCP knows. The SDK writes a line to its log for each of another name."""


class EventError(ValueError):
    """An event exceeds a limit. The stream is not read further."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event.

    Attributes:
        name: The type; empty for the default one.
        data: The data in one line, because line ends in JSON are spaces.
        more: The other fields, unchanged.
    """

    name: bytes
    data: bytes
    more: bytes

    def encoded(self) -> bytes:
        """Encode the event, in as few lines as possible."""
        data = b"data: %s\n" % self.data if self.data else b""
        name = b"event: %s\n" % self.name if self.name and self.data else b""
        return name + data + self.more + b"\n"


class Events:
    """A parser of the pieces of a stream. Empty events, and those that MCP does not use, are left out.

    Args:
        limit: Maximum bytes of an event.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines = Lines(limit)
        self._start = b""  # of the stream, until a byte order mark is recognized
        self._started = False
        self._after_return = False  # the last piece ended with a carriage return: a following line feed belongs to it
        self._begin()

    def _begin(self) -> None:
        self._size = 0
        self._name = self._more = b""
        self._data: list[bytes] = []
        self._count = 0

    def feed(self, piece: bytes) -> None:
        """Add the next bytes."""
        if piece and not self._started:
            # HTML, section 9.2.5: one byte order mark may come first.
            piece, self._start = self._start + piece, b""
            if BOM_UTF8.startswith(piece):
                piece, self._start = b"", piece
            self._started = not self._start
            piece = piece.removeprefix(BOM_UTF8)
        if self._after_return and piece.startswith(b"\n"):
            piece, self._after_return = piece[1:], False
        if piece:
            self._after_return = piece.endswith(b"\r")
            self._lines.feed(piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))

    def next(self) -> Event | None:
        """Return the next event; None if none is complete.

        Raises:
            EventError: The event exceeds a limit.
        """
        while (line := self._lines.next()) is not None:
            if line:
                self._take(line)
            else:
                event = Event(self._name, b" ".join(self._data), self._more)
                self._begin()
                if event.name not in _NAMES:
                    event = Event(b"", b"", event.more)
                if event.data or event.more:
                    return event
        self._check(self._lines.size)
        return None

    def _take(self, line: bytes | Oversized) -> None:
        size = line.size if isinstance(line, Oversized) else len(line)
        self._check(size)
        assert isinstance(line, bytes)
        self._size, self._count = self._size + size + 1, self._count + 1
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            if value:
                self._data.append(value)
        elif field == b"event":
            self._name = value
        elif field == b"id":
            self._more = b"id: %s\n" % value
        elif field == b"retry" and value.isdigit() and 3 <= len(value) <= 6:
            # Milliseconds until the SDK reconnects: from a tenth of a second to a quarter of an hour, or its own delay.
            self._more += b"retry: %s\n" % value

    def _check(self, more: int) -> None:
        """Refuse an event that the next line makes too large, or that has too many lines."""
        if self._size + more > self._limit:
            raise EventError(f"it sent an event of more than {self._limit} bytes, which is the limit")
        if self._count > _MAX_LINES:
            raise EventError(f"it sent an event of more than {_MAX_LINES} lines")
