"""Displayed values: assembled from parts, measured, and rendered as text."""

from __future__ import annotations

import codecs
import math
import sys
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from cellblock.host.output.spill import Spill
from cellblock.model import OutputItem, OutputKind, is_text
from cellblock.wire.messages import TEXT_MIME

_BLOCK = 64 * 1024
_READABLE = (TEXT_MIME, "text/plain", "text/markdown", "text/latex", "text/html")
_MOST_READABLE = 1024 * 1024
"""Bytes of the largest page that is shown as text: a larger one is for browsers, not for reading."""

_PADDED = 1024
"""Characters of a text whose memory is measured, so that its header counts little."""

MOST_METADATA = 256 * 1024
"""Bytes that the metadata of one value may take in memory."""

READ_AS_TEXT = (TEXT_MIME, "text/plain", "text/markdown", "text/latex")
"""Types for reading, with a limit of their own: they become part of a result's text."""


_Raw: TypeAlias = bytes | bytearray | str
"""A value as received, or decoded."""


class Cost:
    """Measures the memory of bytes as text, piece by piece: each character takes as much as the widest one."""

    __slots__ = ("_characters", "_decoder", "_width")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0
        self._width = 1

    def add(self, data: bytes | bytearray) -> None:
        """Add a piece."""
        text = self._decoder.decode(bytes(data)).ljust(_PADDED)  # so the fixed overhead in `getsizeof` counts little
        self._characters += len(text)
        self._width = max(self._width, sys.getsizeof(text) // len(text))

    def of(self, kept: int) -> int:
        """Return the memory of the text if `kept` of its bytes were kept."""
        return max(min(self._characters, kept) * self._width, kept)


class Bundle:
    """One displayed value in all of its MIME types, as bytes until it is used.

    Attributes:
        kind: Its kind.
        data: The values by type.
        metadata: Its metadata.
        size: Its memory use.
        heavy: Whether its metadata was omitted because it used too much memory.
    """

    __slots__ = ("data", "display_id", "heavy", "kind", "metadata", "size", "texts")

    def __init__(
        self,
        kind: OutputKind,
        data: Mapping[str, bytes | bytearray],
        metadata: Mapping[str, Any],
        display_id: str | None,
        room: int,
        size: int,
        texts: Collection[str] = (),
    ) -> None:
        """Store a value.

        Args:
            kind: Its kind.
            data: The values by type.
            metadata: Its metadata.
            display_id: The id under which it is updated.
            room: Memory limit of the metadata.
            size: Memory use of the values.
            texts: Types whose values are text although their names do not show it.
        """
        room = max(min(room, MOST_METADATA), 0)
        weight = _weigh(metadata, room) if metadata else 0
        self.heavy = weight > room
        self.kind = kind
        self.data: dict[str, _Raw] = {**data}
        self.metadata = {} if self.heavy else metadata
        self.display_id = display_id
        self.texts = frozenset(texts)
        self.size = size + _weigh([*data, display_id]) + (0 if self.heavy else weight)

    @property
    def text(self) -> str | None:
        """The value as plain text, for a reader of the stream."""
        return _readable(self.data, hurried=True)

    def item(self, kind: OutputKind) -> OutputItem:
        """Return the value as an output. Decoded text replaces its bytes, so that no large value is held twice."""
        if kind == "error":
            return OutputItem(kind, _readable(self.data))
        data: dict[str, str | bytes] = {}
        for mime, raw in self.data.items():
            text = is_text(mime) or mime in self.texts
            self.data[mime] = data[mime] = raw if isinstance(raw, str) else _decode(raw) if text else bytes(raw)
        readable = _readable(self.data)
        data.pop(TEXT_MIME, None)
        return OutputItem(kind, readable, data=data, metadata=self.metadata, display_id=self.display_id)


class Value:
    """One large value as it arrives: kept whole or dropped. Readable text keeps its beginning and end.

    Attributes:
        total: Its size in bytes.
        closed: Whether another value has begun since.
        over: Whether it exceeded its limit.
        spill: The file that then contains all of it.
    """

    def __init__(self, mime: str, limit: int, spill: Spill) -> None:
        self._limit = max(limit, 0)
        self._in_part = mime in (TEXT_MIME, "text/plain")
        self._cost = Cost() if is_text(mime) else None
        self._data = bytearray()
        self._tail: deque[bytearray] = deque()
        self._tail_size = 0
        self.spill = spill
        self.total = 0
        self.closed = False
        self.over = False

    @property
    def size(self) -> int:
        """Number of bytes kept."""
        return len(self._data) + self._tail_size

    @property
    def cost(self) -> int:
        """The memory use of the kept part."""
        return len(self._data) if self._cost is None else self._cost.of(len(self._data))

    def add(self, data: bytes) -> None:
        self.total += len(data)
        if self._cost is not None and (self._in_part or not self.over):
            self._cost.add(data)
        if self.over:
            self.spill.write(data)
        elif self.total > self._limit:
            self.over = True
            self.spill.begin((self._data, data))
            if self._in_part:
                self._data += data  # first: one piece can be larger than the half that is kept
                data = bytes(self._data[self._limit // 2 :])
                del self._data[self._limit // 2 :]
            else:
                self._data = bytearray()
        if not self.over:
            self._data += data
        elif self._in_part:
            self._add_to_tail(data)

    def _add_to_tail(self, data: bytes) -> None:
        if not self._tail or len(self._tail[-1]) >= _BLOCK:
            self._tail.append(bytearray())
        self._tail[-1] += data
        self._tail_size += len(data)
        while (excess := self._tail_size - self._limit // 2) > 0:
            oldest = self._tail[0]
            dropped = min(excess, len(oldest))
            if dropped == len(oldest):
                self._tail.popleft()
            else:
                del oldest[:dropped]
            self._tail_size -= dropped

    def finish(self) -> bytearray | None:
        """Return what was kept; None if it was too large."""
        self.spill.close()
        if self.over and self._in_part:
            self._data += b"\n\xe2\x80\xa6 %s bytes left out \xe2\x80\xa6\n" % f"{self.total - self.size:,}".encode()
            for block in self._tail:
                self._data += block
        return self._data if self._in_part or not self.over else None


def cost(data: bytes | bytearray, *, text: bool) -> int:
    """Return the memory use of a small value, as text or as bytes."""
    if not text or data.isascii():
        return len(data)
    measured = Cost()
    measured.add(data)
    return measured.of(len(data))


def _decode(data: _Raw) -> str:
    """Decode text. Invalid UTF-8 takes ten times as long, so other threads run in between."""
    if isinstance(data, str):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        slices = (bytes(data[start : start + _BLOCK]) for start in range(0, len(data), _BLOCK))
        return "".join([*map(decoder.decode, slices), decoder.decode(b"", final=True)])


def _readable(data: Mapping[str, _Raw], *, hurried: bool = False) -> str | None:
    for mime in _READABLE:
        raw = data.get(mime)
        if raw is None or (mime not in READ_AS_TEXT and len(raw) > _MOST_READABLE):
            continue
        if isinstance(raw, str) or not hurried or len(raw) <= _MOST_READABLE:
            return _decode(raw)
        try:
            return raw.decode()
        except UnicodeDecodeError:  # invalid text takes ten times as long to decode, and no genuine worker sends it
            continue
    # A reader of plain text should know that there is something to see.
    return f"<{', '.join(data)}>" if data else None


def _weigh(value: object, enough: float = math.inf) -> int:
    """Return the memory use of JSON data: small objects take many times their bytes on the wire.

    Args:
        value: The data.
        enough: When to stop counting.
    """
    size = 0
    todo = [value]
    while todo and size <= enough:
        item = todo.pop()
        size += sys.getsizeof(item)
        if isinstance(item, Mapping):
            todo += item
            todo += item.values()
        elif isinstance(item, list):
            todo += item
    return size
