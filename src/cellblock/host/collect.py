"""Gathers what a cell shows, within bounds, and makes the result of it.

Text is kept up to a limit from its beginning and its end; what lies between is dropped, or written to a file on request.
"""

from __future__ import annotations

import math
import sys
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cellblock.host.files.beneath import create_file
from cellblock.host.spill import Spill, reason
from cellblock.model import OutputItem, OutputKind, StreamName
from cellblock.wire.messages import MAX_MIMES, Display

_BLOCK = 64 * 1024
_OVERHEAD = 128  # what an entry costs beside its text
_PNG = b"\x89PNG\r\n\x1a\n"
_TEXT_TYPES = ("text/", "application/javascript", "application/x-latex", "image/svg+xml")
_READABLE = ("text/plain", "text/markdown", "text/latex", "text/html")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of what a cell shows is kept in memory.

    Attributes:
        text: Bytes of printed text: half from the beginning, half from the end.
        value: Bytes of one value of a MIME bundle.
        values: Bytes of all values of a cell.
        displays: Number of displayed values of a cell.
        queue: Bytes that may wait for whoever reads `stream()` before the kernel has to wait.
    """

    text: int = 2 * 1024 * 1024
    value: int = 8 * 1024 * 1024
    values: int = 16 * 1024 * 1024
    displays: int = 1000
    queue: int = 4 * 1024 * 1024


class _Text:
    """A run of text of one stream."""

    __slots__ = ("data", "name")

    def __init__(self, name: StreamName, data: bytes) -> None:
        self.name = name
        self.data = bytearray(data)


class _Gap:
    """Where text was left out, and of which stream it was."""

    __slots__ = ("name",)

    def __init__(self, name: StreamName) -> None:
        self.name = name


_Entry = _Text | OutputItem | _Gap


class Collector:
    """The output of one cell.

    Attributes:
        truncated: Whether something was left out.
        spilled: Files that hold what was left out, and all around it.
    """

    def __init__(self, limits: Limits, spill_dir: Path | None = None) -> None:
        self._limits = limits
        self._spill_dir = spill_dir
        self._spill = Spill(spill_dir, "text/plain")
        self.truncated = False
        self.spilled: list[Path] = []
        self.notes: list[str] = []
        self._parts: dict[str, _Value] = {}
        self._clear_next = False
        self._start()

    def _start(self) -> None:
        self._head: list[_Entry] = []
        self._tail: deque[_Text | OutputItem] = deque()
        self._head_room = self._limits.text // 2
        self._tail_size = 0
        self._dropped = 0
        self._values_room = self._limits.values
        self._displays = 0

    @property
    def has_images(self) -> bool:
        """Whether there may be images among what was shown."""
        return self._displays > 0

    def clear(self, wait: bool) -> None:
        """Forget everything shown so far; with ``wait``, when the next output comes."""
        if wait:
            self._clear_next = True
        else:
            self._clear_next = False
            self._start()

    def add_text(self, name: StreamName, data: bytes) -> None:
        """Take text that was written to a stream."""
        self._before_output()
        self._spill.write(data)
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
            if isinstance(oldest, OutputItem):
                self._head.append(oldest)  # text around it may be dropped, a value never is
                self._tail.popleft()
            elif excess > 0:
                self._drop(oldest, excess)
            else:
                return

    def _drop(self, oldest: _Text, excess: int) -> None:
        if not self._dropped:
            self._spill.begin(entry.data for entry in (*self._head, *self._tail) if isinstance(entry, _Text))
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
        """Take a piece of a value that is too large for one frame. The pieces of a value follow each other."""
        value = self._parts.get(mime)
        if value is None and len(self._parts) < MAX_MIMES:
            for other in self._parts.values():
                other.closed = True
            room = self._values_room - _OVERHEAD - sum(other.size for other in self._parts.values())
            value = self._parts[mime] = _Value(min(self._limits.value, room), Spill(self._spill_dir, mime))
        elif value is None or value.closed:
            self.truncated = True
            return
        self.truncated |= value.add(data)

    def add_display(self, message: Display) -> OutputItem | None:
        """Take a MIME bundle.

        Returns:
            The output it made or changed, or None where there was no room for it.
        """
        self._before_output()
        data: dict[str, str | bytes] = {}
        size = 0
        for mime, raw in self._values_of(message):
            if not self._fits(size + len(raw)):
                self.truncated = True
                continue
            size += len(raw)
            data[mime] = raw.decode("utf-8", "replace") if _is_text(mime) else raw
        self._drop_parts()
        metadata = message.metadata
        room = self._values_room - size
        if metadata and _weigh(metadata, enough=room) > room:
            self.truncated, metadata = True, {}
        kind: OutputKind = "execute_result" if message.kind == "execute_result" else "display_data"
        item = OutputItem(kind, text=_readable(data), data=data, metadata=metadata, display_id=message.display_id)
        if message.kind == "update_display_data" and self._replace(item):
            return item
        if self._displays >= self._limits.displays:
            self.truncated = True
            return None
        self._displays += 1
        self._values_room -= _size(item)
        if self._head_room > 0:
            self._head.append(item)
        else:
            self._tail.append(item)
        return item

    def _fits(self, size: int) -> bool:
        return size <= self._values_room

    def _values_of(self, message: Display) -> Iterator[tuple[str, bytes]]:
        yield from message.data.items()
        for mime in message.parts:
            value = self._parts.pop(mime, None)
            if value is None:
                continue
            data = value.finish()
            self._note(value.spill)
            # Half an image is none.
            if not value.cut or _is_text(mime):
                yield mime, data

    def _replace(self, item: OutputItem) -> bool:
        found = False
        for entries in (self._head, self._tail):
            for index, entry in enumerate(entries):
                if isinstance(entry, OutputItem) and entry.display_id == item.display_id is not None:
                    kept = OutputItem(entry.kind, item.text, None, item.data, item.metadata, item.display_id)
                    self._values_room += _size(entry) - _size(kept)
                    entries[index] = kept
                    found = True
        return found

    def close(self) -> None:
        """Close what is open, and gather what there is to say of it."""
        self._drop_parts()
        self._note(self._spill)
        self._spill = Spill(None, "text/plain")

    def _drop_parts(self) -> None:
        for value in self._parts.values():
            value.finish()
            self._note(value.spill)
        self._parts.clear()

    def _note(self, spill: Spill) -> None:
        spill.close()
        if spill.path is not None:
            self.spilled.append(spill.path)
        if spill.problem is not None and spill.problem not in self.notes:
            self.notes.append(spill.problem)

    def items(self) -> list[OutputItem]:
        """Return the outputs in order; runs of text are one output each."""
        self.close()
        texts: list[tuple[StreamName, bytearray] | OutputItem] = []

        def add(name: StreamName, data: bytes | bytearray) -> None:
            if texts and not isinstance(texts[-1], OutputItem) and texts[-1][0] == name:
                texts[-1][1].extend(data)
            elif data:
                texts.append((name, bytearray(data)))

        for entry in (*self._head, *self._tail):
            if isinstance(entry, OutputItem):
                texts.append(entry)
            elif isinstance(entry, _Text):
                add(entry.name, entry.data)
            else:
                add(entry.name, f"\n… {self._dropped:,} bytes of output left out …\n".encode())
        for note in self.notes:
            add("stderr", f"{note}\n".encode())
        return [
            entry
            if isinstance(entry, OutputItem)
            else OutputItem("stream", entry[1].decode("utf-8", "replace"), name=entry[0])
            for entry in texts
        ]


class _Value:
    """One large value as it arrives: kept up to a limit, from its beginning and its end.

    Attributes:
        closed: Whether another value has begun since.
    """

    def __init__(self, limit: int, spill: Spill) -> None:
        self._limit = max(limit, 0)
        self._data = bytearray()
        self._tail: deque[bytearray] = deque()
        self._tail_size = 0
        self._dropped = 0
        self.spill = spill
        self.closed = False

    @property
    def size(self) -> int:
        """How many bytes of it are kept."""
        return len(self._data) + self._tail_size

    @property
    def cut(self) -> bool:
        """Whether something of it was left out."""
        return self._dropped > 0

    def add(self, data: bytes) -> bool:
        """Take a piece; return whether something had to be left out."""
        self.spill.write(data)
        half = self._limit // 2
        room = half - len(self._data)
        if room > 0:
            self._data += data[:room]
            data = data[room:]
        if data:
            if not self._tail or len(self._tail[-1]) >= _BLOCK:
                self._tail.append(bytearray())
            self._tail[-1] += data
            self._tail_size += len(data)
        while (excess := self._tail_size - half) > 0:
            if not self._dropped:
                self.spill.begin((self._data, *self._tail))
            oldest = self._tail[0]
            dropped = min(excess, len(oldest))
            if dropped == len(oldest):
                self._tail.popleft()
            else:
                del oldest[:dropped]
            self._tail_size -= dropped
            self._dropped += dropped
        return self.cut

    def finish(self) -> bytes:
        """Return what was kept."""
        gap = f"\n… {self._dropped:,} bytes left out …\n".encode() if self._dropped else b""
        return b"".join((bytes(self._data), gap, *self._tail))


def save_images(items: list[OutputItem], directory: Path) -> tuple[list[Path], list[str]]:
    """Write the PNG images among some outputs to files.

    Args:
        items: The outputs.
        directory: An absolute path, which is followed through no link: a session may have made it, to lead us elsewhere.

    Returns:
        The paths, and a note for each image that could not be written.
    """
    paths: list[Path] = []
    notes: list[str] = []
    for item in items:
        data = item.data.get("image/png")
        if not isinstance(data, bytes) or not data.startswith(_PNG):
            continue
        path = directory / f"{uuid.uuid4().hex[:8]}.png"
        try:
            with open(create_file(str(directory), path.name), "wb") as file:
                file.write(data)
        except OSError as error:
            notes.append(f"[cellblock] an image could not be saved in {directory}: {reason(error)}")
            continue
        paths.append(path)
    return paths, notes


def _character_start(data: bytes | bytearray, place: int, step: int) -> int:
    """Return the nearest place in one direction that is not within a character. What is no UTF-8 may have none."""
    for _ in range(3):
        if not 0 < place < len(data) or data[place] & 0xC0 != 0x80:
            break
        place += step
    return place


def _is_text(mime: str) -> bool:
    return mime.startswith(_TEXT_TYPES) or mime.endswith(("json", "xml"))


def _readable(data: Mapping[str, str | bytes]) -> str | None:
    for mime in _READABLE:
        value = data.get(mime)
        if isinstance(value, str):
            return value
    # A reader of plain text should know that there is something to see.
    return f"<{', '.join(data)}>" if data else None


def _size(item: OutputItem) -> int:
    return sum(map(len, item.data.values())) + _weigh([*item.data, item.display_id]) + _weigh(item.metadata)


def _weigh(value: object, enough: float = math.inf) -> int:
    """Return how much memory JSON data takes: small objects take many times the bytes they had on the wire.

    Args:
        value: The data.
        enough: Where to stop counting.
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
