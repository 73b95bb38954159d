"""The queue of events for the reader of a running cell: output, and requests that need an answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from cellblock.host.output.values import Bundle
from cellblock.model import CodeExecutionChunk, OutputItem, OutputKind, StreamName
from cellblock.wire.messages import Comm


@dataclass(slots=True)
class Notice:
    """An event other than output, for the reader of a cell's stream.

    Attributes:
        about: The subject, an approval request; None if withdrawn.
    """

    about: object


@dataclass(frozen=True, slots=True)
class Cleared:
    """An event: the code cleared its output (`IPython.display.clear_output`).

    Attributes:
        wait: Whether the old output stays until new output arrives.
    """

    wait: bool


Event: TypeAlias = CodeExecutionChunk | OutputItem | Cleared | Comm | Notice
"""An event for the reader of a running cell."""

_CHUNK = 256
"""Bytes that a queued chunk counts for, on top of its text."""

_MAX_EMPTY = 1000

Saved: TypeAlias = tuple[list[tuple[Event, int]], int | None, bool, bool, int, bool]


class CellEvents:
    """The event queue of one cell. A slow reader blocks the kernel (backpressure).

    Attributes:
        given: Number of output events that the reader has finished, by asking for the next one.
        stopping: Whether the cell is being stopped, and so does not wait for the reader.
        pause: Pauses (True) or resumes the kernel's output.
    """

    def __init__(
        self,
        limit: int | None,
        *,
        rich: bool = False,
        comms: bool = False,
        on_notice: Callable[[object], None] | None = None,
    ) -> None:
        """Start with an empty queue.

        Args:
            limit: Limit in bytes of queued chunks; None without a reader of chunks.
            rich: Whether displayed values are events with all MIME types, not only text.
            comms: Whether widget messages are events.
            on_notice: Receives the subject of each notice, instead of a reader of events.
        """
        self._limit = limit
        self._rich = rich
        self._comms = comms
        self._on_notice = on_notice
        self._events: deque[tuple[Event, int]] = deque()
        self._queued = 0
        self._notices: dict[int, Notice] = {}
        self._empty = 0
        self._paused = False
        self._over = False
        self._changed = asyncio.Event()
        self._given: tuple[Event, int] | None = None
        self.given = 0
        self.stopping = False
        self.pause: Callable[[bool], None] = lambda _paused: None

    @property
    def streaming(self) -> bool:
        """Whether chunks have a reader."""
        return self._limit is not None

    def emit(self, text: str, name: StreamName | None, *, ours: bool = False) -> None:
        """Queue a chunk. With a slow reader, pause the kernel, unless it is being stopped.

        Args:
            text: The text.
            name: The stream, or None for a displayed value.
            ours: Whether the host wrote the text. Pausing the kernel cannot block the host, so the chunk is dropped if the
                queue is full.
        """
        if self._limit is None or not text:
            return
        if self._queued >= self._limit and (ours or self.stopping):
            return  # the result still contains it, up to its limit
        self._queue(CodeExecutionChunk(text, name), len(text) + _CHUNK)

    def show(self, bundle: Bundle, kind: OutputKind) -> None:
        """Queue a displayed value: as text, or with all MIME types for a rich reader."""
        if not self._rich:
            if self._limit is not None and (shown := bundle.text):
                self.emit(f"{shown}\n", None)
        elif self._limit is not None and not (self._queued >= self._limit and self.stopping):
            self._queue(bundle.item(kind), bundle.size + _CHUNK)

    def clear(self, wait: bool) -> None:
        """Queue a clearing of the output, for rich readers only."""
        if self._rich and self._limit is not None:
            self._queue(Cleared(wait), _CHUNK)

    def pass_on(self, message: Comm) -> None:
        """Queue a widget message, if these are events. It is not part of the result."""
        if self._comms and self._limit is not None and not (self._queued >= self._limit and self.stopping):
            self._queue(message, len(message.content) + sum(map(len, message.buffers)) + _CHUNK)

    def _queue(self, event: Event, size: int) -> None:
        """Queue an event. Pause the kernel if the reader is slow."""
        self._events.append((event, size))
        self._queued += size
        self._changed.set()
        if self._queued >= (self._limit or 0) and not self.stopping and not self._paused:
            self._paused = True
            self.pause(True)

    def notify(self, notice: Notice) -> None:
        """Queue a notice after the cell's earlier output."""
        if self._on_notice is not None:
            self._on_notice(notice.about)
            return
        if id(notice.about) not in self._notices:
            self._notices[id(notice.about)] = notice
            self._events.append((notice, 0))
            self._changed.set()

    def retract(self, about: object) -> None:
        """Withdraw an unread notice and drop its subject, even with a slow reader."""
        notice = self._notices.pop(id(about), None)
        if notice is None:
            return
        notice.about = None
        self._empty += 1
        if self._empty > _MAX_EMPTY:
            self._events = deque(
                (event, size) for event, size in self._events if not isinstance(event, Notice) or event.about is not None
            )
            self._empty = 0

    def release(self) -> None:
        """Resume the kernel, with or without a reader."""
        if self._paused:
            self._paused = False
            self.pause(False)

    def end(self) -> None:
        """Mark the end of the events: the cell has ended, or could not start."""
        self._over = True
        self._changed.set()

    async def next(self) -> Event | None:
        """Return the next event, or None after the last one."""
        if self._given is not None:
            self._given = None
            self.given += 1
        while True:
            while not self._events:
                if self._over:
                    return None
                self._changed.clear()
                await self._changed.wait()
            event, size = self._events.popleft()
            if not isinstance(event, Notice):
                break
            if event.about is not None:
                del self._notices[id(event.about)]
                return event
            self._empty -= 1
        self._given = event, size
        self._queued -= size
        if self._paused and self._queued < (self._limit or 0) // 2:
            self.release()
        return event

    def saved(self) -> Saved:
        """Return the state for another host."""
        given = () if self._given is None else (self._given,)
        waiting = (entry for entry in self._events if not isinstance(entry[0], Notice))
        return [*given, *waiting], self._limit, self._rich, self._comms, self.given, self.stopping

    @classmethod
    def restored(cls, saved: Saved) -> CellEvents:
        """Return the events that another host queued."""
        waiting, limit, rich, comms, given, stopping = saved
        events = cls(limit, rich=rich, comms=comms)
        events.given, events.stopping = given, stopping
        for event, size in waiting:
            events._queue(event, size)
        return events
