"""Collects the output of a cell within limits: text, and displayed values.

Above a limit, the beginning and the end of text are kept. The middle is dropped, or written to a file on request.
"""

from __future__ import annotations

import codecs
import math
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from cellblock.host.output.limits import Limits
from cellblock.host.output.spill import Spill, SpillDirectory, Spills
from cellblock.model import OutputItem, OutputKind, StreamName, is_text
from cellblock.wire.fields import MAX_MIMES
from cellblock.wire.messages import TEXT_MIME, Display

_BLOCK = 64 * 1024
_OVERHEAD = 128  # cost of an entry in addition to its text
_MOST_NOTES = 10  # about omissions; `truncated` tells that there are more
_LARGE, _MANY = 256 * 1024, 20  # minimum bytes and displays for creating a result in a thread

_READABLE = (TEXT_MIME, "text/plain", "text/markdown", "text/latex", "text/html")
_MOST_READABLE = 1024 * 1024
"""Bytes of the largest page that is shown as text: a larger one is for browsers, not for reading."""

_PADDED = 1024
"""Characters of a text whose memory is measured, so that its header counts little."""

MOST_METADATA = 256 * 1024
"""Bytes that the metadata of one value may take in memory."""

_READ_AS_TEXT = (TEXT_MIME, "text/plain", "text/markdown", "text/latex")
"""Types for reading, with a limit of their own: they become part of a result's text."""

_Raw: TypeAlias = bytes | bytearray | str
"""A value as received, or decoded."""


class _Text:
    """A run of text of one stream."""

    __slots__ = ("data", "name")

    def __init__(self, name: StreamName, data: bytes | bytearray) -> None:
        self.name = name
        self.data = bytearray(data)


class _Gap:
    """A position of omitted text of a stream."""

    __slots__ = ("name",)

    def __init__(self, name: StreamName) -> None:
        self.name = name


class _Place:
    """The slot of a display id. An update replaces the value in all entries with this id.

    Attributes:
        bundle: The value of the last update.
        count: Number of entries that show it.
        fresh: Later entries with the same id.
    """

    __slots__ = ("bundle", "count", "fresh")

    def __init__(self) -> None:
        self.bundle: Bundle | None = None
        self.count = 0
        self.fresh: list[_Shown] = []


class _Shown:
    """A displayed value; with a slot, the slot's current value."""

    __slots__ = ("bundle", "place")

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.place: _Place | None = None

    @property
    def current(self) -> Bundle:
        """The current value."""
        return self.bundle if self.place is None or self.place.bundle is None else self.place.bundle


_Entry = _Text | _Shown | _Gap


# -- displayed values --------------------------------------------------------------------------------------------------


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


def _cost(data: bytes | bytearray, *, text: bool) -> int:
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
        if raw is None or (mime not in _READ_AS_TEXT and len(raw) > _MOST_READABLE):
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


# -- the output --------------------------------------------------------------------------------------------------------


class Collector:
    """The output of one cell.

    Attributes:
        truncated: Whether something was omitted.
        notes: Lines to add at the end.
        unsaid: Lines for the caller to add to the output here.
    """

    def __init__(self, limits: Limits, spill_to: SpillDirectory | None = None) -> None:
        self._limits = limits
        self._directory = spill_to
        self._files: Spills | None = None
        self._text_file: Spill | None = None
        self.truncated = False
        self.notes: list[str] = []
        self.unsaid: list[str] = []
        self._left_out: list[str] = []
        self._parts: dict[str, Value] = {}
        self._clear_next = False
        self._start()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another host. The many texts become tuples, which pickle fastest."""
        state = {**self.__dict__, "_directory": None}
        for name in ("_head", "_tail"):
            state[name] = [(entry.name, entry.data) if type(entry) is _Text else entry for entry in state[name]]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state from another host."""
        for name, kind in (("_head", list), ("_tail", deque)):
            state[name] = kind(_Text(*entry) if type(entry) is tuple else entry for entry in state[name])
        self.__dict__.update(state)

    def spill_to(self, directory: SpillDirectory | None) -> None:
        """Set the directory for large output, after a takeover from another host."""
        self._directory = directory
        if self._files is not None:
            self._files.directory = directory

    @property
    def _spills(self) -> Spills:
        """The files for omitted output. Few cells need them."""
        if self._files is None:
            self._files = Spills(self._directory)
        return self._files

    def _start(self) -> None:
        self._head: list[_Entry] = []
        self._tail: deque[_Text | _Shown] = deque()
        self._head_room = self._limits.text // 2
        self._tail_size = 0
        self._dropped = 0
        self._values_room = self._limits.values
        self._displays = 0
        self._places: dict[str, _Place] = {}

    def note(self, line: str) -> None:
        """Add a line at the end, also for readers of the running cell's stream."""
        self.notes.append(line)
        self.unsaid.append(line)

    @property
    def empty(self) -> bool:
        """Whether there is no output."""
        return not (self._head or self._tail or self._parts or self._clear_next or self.truncated or self._displays)

    @property
    def large(self) -> bool:
        """Whether creating a result takes long."""
        kept = self._limits.text // 2 - self._head_room + self._tail_size + self._limits.values - self._values_room
        return kept > _LARGE or self._displays > _MANY or (self._files is not None and self._files.begun)

    def clear(self, wait: bool) -> None:
        """Drop all output so far; with ``wait``, when the next output arrives."""
        if wait:
            self._clear_next = True
        else:
            self._clear_next = False
            self._start()

    def add_text(self, name: StreamName, data: bytes) -> None:
        """Handle text from a stream."""
        self._before_output()
        if self._text_file is not None:
            self._text_file.write(data)
        if self._head_room > 0:
            data = self._add_to_head(name, data)
        if data:
            self._add_to_tail(name, data)

    def _before_output(self) -> None:
        if self._clear_next:
            self.clear(wait=False)

    def _add_to_head(self, name: StreamName, data: bytes) -> bytes:
        room = self._head_room - len(data)
        end = len(data)
        if room < 0:
            room, end = 0, _character_start(data, self._head_room, -1)
        taken = data[:end]
        last = self._head[-1] if self._head else None
        if isinstance(last, _Text) and last.name == name:
            last.data += taken
        else:
            self._head.append(_Text(name, taken))
            room -= _OVERHEAD
        self._head_room = room
        return data[len(taken) :]

    def _add_to_tail(self, name: StreamName, data: bytes) -> None:
        last = self._tail[-1] if self._tail else None
        if isinstance(last, _Text) and last.name == name and len(last.data) < _BLOCK:
            last.data += data
        else:
            self._tail.append(_Text(name, data))
            self._tail_size += _OVERHEAD
        self._tail_size += len(data)
        while self._tail:
            oldest = self._tail[0]
            excess = self._tail_size - self._limits.text // 2
            if isinstance(oldest, _Shown):
                self._head.append(oldest)  # text around it may be dropped, a value never is
                self._tail.popleft()
            elif excess > 0:
                self._drop(oldest, excess)
            else:
                return

    def _drop(self, oldest: _Text, excess: int) -> None:
        if not self._dropped:
            if self._text_file is None:
                self._text_file = Spill(self._spills, "text/plain")
            self._text_file.begin(entry.data for entry in (*self._head, *self._tail) if isinstance(entry, _Text))
            self._head.append(_Gap(oldest.name))
        count = _character_start(oldest.data, min(excess, len(oldest.data)), 1)
        del oldest.data[:count]
        self._tail_size -= count
        self._dropped += count
        self.truncated = True
        if not oldest.data:
            self._tail.popleft()
            self._tail_size -= _OVERHEAD

    def add_part(self, mime: str, data: bytes) -> None:
        """Handle a piece of a value that is too large for one frame. A value's pieces arrive in sequence."""
        value = self._parts.get(mime)
        if value is None and len(self._parts) < MAX_MIMES:
            for other in self._parts.values():
                other.closed = True
            room = self._values_room - _OVERHEAD - sum(other.size for other in self._parts.values())
            value = self._parts[mime] = Value(mime, min(self._limit(mime), room), Spill(self._spills, mime))
        elif value is None or value.closed:
            self.truncated = True
            return
        value.add(data)
        self.truncated |= value.over

    def _limit(self, mime: str) -> int:
        return self._limits.value if mime in _READ_AS_TEXT else self._limits.media

    def add_display(self, message: Display) -> Bundle | None:
        """Handle a MIME bundle.

        Returns:
            The value to show; None if there was no room for it.
        """
        self._before_output()
        data: dict[str, bytes | bytearray] = {}
        size = 0
        for mime, raw, taken in self._values_of(message):
            if not self._fits(size + taken):
                self._leave_out(mime, len(raw), self._saved(mime, raw), taken)
                continue
            size += taken
            data[mime] = raw
        self._drop_parts()
        known = message.kind != "update_display_data" or message.display_id in self._places
        kind: OutputKind = "display_data" if known and message.kind == "update_display_data" else message.kind
        bundle = Bundle(kind, data, message.metadata, message.display_id, self._values_room - size, size, message.texts)
        self.truncated |= bundle.heavy
        if message.kind == "update_display_data" and message.display_id in self._places:
            return bundle if self._update(self._places[message.display_id], bundle) else None
        if self._displays >= self._limits.displays:
            self._note_left_out(f"displays after the first {self._limits.displays:,} are left out (Limits.displays)")
            return None
        self._displays += 1
        self._values_room -= bundle.size
        shown = _Shown(bundle)
        if bundle.display_id is not None:
            self._places.setdefault(bundle.display_id, _Place()).fresh.append(shown)
        if self._head_room > 0:
            self._head.append(shown)
        else:
            self._tail.append(shown)
        return bundle

    def _fits(self, size: int) -> bool:
        return size <= self._values_room

    def _values_of(self, message: Display) -> Iterator[tuple[str, bytes | bytearray, int]]:
        """Yield the values of a message, each with its memory use."""
        for mime, raw in message.data.items():
            if len(raw) > self._limit(mime):  # hostile: the worker sends large values in parts
                self._leave_out(mime, len(raw), self._saved(mime, raw))
            else:
                yield mime, raw, _cost(raw, text=is_text(mime) or mime in message.texts)
        for mime in message.parts:
            value = self._parts.pop(mime, None)
            if value is None:
                continue
            data = value.finish()
            if data is not None:
                # Not measured, as it may be large: a character outside ASCII takes up to four bytes.
                widest = 1 if mime not in message.texts or data.isascii() else 4
                yield mime, data, value.cost * widest
            else:
                self._leave_out(mime, value.total, value.spill)

    def _leave_out(self, mime: str, size: int, spill: Spill, taken: int = 0) -> None:
        """Omit a value of `size` bytes, with a memory use of `taken`, and add a note."""
        limit = self._limit(mime)
        name = "value" if mime in _READ_AS_TEXT else "media"
        if size <= limit:
            limit, name = self._limits.values, "values, for all of a cell"
        in_memory = f" ({taken:,} in memory)" if taken > size else ""
        where = f"; it is in {spill.path}" if spill.path is not None else ""
        self._note_left_out(
            f"{mime[:100]} is left out: its {size:,} bytes{in_memory} are over the limit of {limit:,} (Limits.{name}){where}"
        )

    def _saved(self, mime: str, data: bytes | bytearray) -> Spill:
        spill = Spill(self._spills, mime)
        spill.begin((data,))
        spill.close()
        return spill

    def _note_left_out(self, what: str) -> None:
        self.truncated = True
        note = f"[cellblock] {what}"
        if note not in self._left_out and len(self._left_out) < _MOST_NOTES:
            self._left_out.append(note)
            self.unsaid.append(note)

    def _update(self, place: _Place, bundle: Bundle) -> bool:
        """Update every entry of a display id. All of them count as one display."""
        count = place.count + len(place.fresh)
        before = sum(shown.bundle.size for shown in place.fresh)
        if place.bundle is not None:
            before += place.count * place.bundle.size
        if not self._fits(count * bundle.size - before):
            self._note_left_out("an update is left out: with it, values would be over their limit (Limits.values)")
            return False
        self._values_room += before - count * bundle.size
        for shown in place.fresh:
            shown.place = place
        place.fresh.clear()
        place.count, place.bundle = count, bundle
        return True

    @property
    def behind(self) -> bool:
        """Whether the kernel should wait until the disk has caught up with omitted output."""
        return self._files is not None and self._files.behind

    def hurry(self) -> None:
        """Stop making the kernel wait for the disk, because it is being stopped."""
        self._spills.hurry()

    async def written(self) -> None:
        """Wait, after `close`, until omitted output is on disk."""
        if self._files is not None:
            await self._files.written()

    def close(self) -> None:
        """Close open files."""
        self._drop_parts()
        if self._text_file is not None:
            self._text_file.close()
        if self._files is not None:
            self._files.close()

    def _drop_parts(self) -> None:
        for value in self._parts.values():
            value.finish()
        self._parts.clear()

    @property
    def spilled(self) -> list[Path]:
        """Files with omitted output, including the surrounding output."""
        return [] if self._files is None else self._files.paths

    def so_far(self) -> Iterator[tuple[str, StreamName | None]]:
        """Yield the output so far for a reader of chunks: text, and its stream or None."""
        for entry in (*self._head, *self._tail):
            if isinstance(entry, _Shown):
                if text := entry.current.text:
                    yield f"{text}\n", None
            else:
                yield (entry.data.decode("utf-8", "replace") if isinstance(entry, _Text) else self._mark), entry.name

    @property
    def _mark(self) -> str:
        return f"\n… {self._dropped:,} bytes of output left out …\n"

    def items(self) -> list[OutputItem]:
        """Return the outputs in order. Adjacent text of one stream is one output."""
        texts: list[tuple[StreamName, bytearray] | OutputItem] = []

        def add(name: StreamName, data: bytes | bytearray) -> None:
            if texts and not isinstance(texts[-1], OutputItem) and texts[-1][0] == name:
                texts[-1][1].extend(data)
            elif data:
                texts.append((name, bytearray(data)))

        for entry in (*self._head, *self._tail):
            if isinstance(entry, _Shown):
                texts.append(entry.current.item(entry.bundle.kind))
            elif isinstance(entry, _Text):
                add(entry.name, entry.data)
            else:
                add(entry.name, self._mark.encode())
        for note in (*([] if self._files is None else self._files.problems), *self.notes):
            add("stderr", f"{note}\n".encode())
        return [
            entry
            if isinstance(entry, OutputItem)
            else OutputItem("stream", entry[1].decode("utf-8", "replace"), name=entry[0])
            for entry in texts
        ]


def _character_start(data: bytes | bytearray, place: int, step: int) -> int:
    """Return the nearest character boundary in one direction. Bytes that are not UTF-8 may have none."""
    for _ in range(3):
        if not 0 < place < len(data) or data[place] & 0xC0 != 0x80:
            break
        place += step
    return place
