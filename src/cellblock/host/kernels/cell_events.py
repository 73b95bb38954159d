"""What the reader of a cell is given while it runs: output, and what needs an answer."""

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
    """Something other than output, for the reader of a cell's stream.

    Attributes:
        about: What it is: an approval request. None if it was taken back.
    """

    about: object


@dataclass(frozen=True, slots=True)
class Cleared:
    """The code has cleared its output (`IPython.display.clear_output`), for a reader who follows outputs.

    Attributes:
        wait: Whether what was shown stays until the next output comes.
    """

    wait: bool


Event: TypeAlias = CodeExecutionChunk | OutputItem | Cleared | Comm | Notice
"""What the reader of a cell is given while it runs."""

_CHUNK = 256
"""Bytes that a chunk in the queue costs, whatever its text."""

_MAX_EMPTY = 1000

Saved: TypeAlias = tuple[list[tuple[Event, int]], int | None, bool, bool, int, bool]


class CellEvents:
    """The events of one cell, queued for its reader. If the reader is slow the kernel has to wait.

    Attributes:
        given: How many events of its output the reader has taken, and asked for the next one.
        stopping: Whether the cell is being stopped, so that it waits for no reader.
        pause: Has the kernel's output wait, or go on.
    """

    def __init__(
        self,
        limit: int | None,
        *,
        rich: bool = False,
        comms: bool = False,
        on_notice: Callable[[object], None] | None = None,
    ) -> None:
        """Begin without events.

        Args:
            limit: Bytes of chunks that may wait for a reader; None if nobody reads chunks.
            rich: Whether displayed values are to be events with all of their types, and not just text.
            comms: Whether messages of widgets are events.
            on_notice: Takes what notices are about, in place of a reader of events.
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
        """Whether somebody reads chunks."""
        return self._limit is not None

    def emit(self, text: str, name: StreamName | None, *, ours: bool = False) -> None:
        """Queue a chunk. If the reader is slow the kernel has to wait, unless it is being stopped.

        Args:
            text: The text.
            name: The stream, or None for a displayed value.
            ours: Whether it does not come from the kernel: that this waits would not stop it from coming, so it is dropped.
        """
        if self._limit is None or not text:
            return
        if self._queued >= self._limit and (ours or self.stopping):
            return  # the result has what is kept of it
        self._queue(CodeExecutionChunk(text, name), len(text) + _CHUNK)

    def show(self, bundle: Bundle, kind: OutputKind) -> None:
        """Queue a displayed value: as text, or with all of its types for a reader who wants them."""
        if not self._rich:
            if self._limit is not None and (shown := bundle.text):
                self.emit(f"{shown}\n", None)
        elif self._limit is not None and not (self._queued >= self._limit and self.stopping):
            self._queue(bundle.item(kind), bundle.size + _CHUNK)

    def clear(self, wait: bool) -> None:
        """Queue that the output was cleared, for a reader who follows outputs."""
        if self._rich and self._limit is not None:
            self._queue(Cleared(wait), _CHUNK)

    def pass_on(self, message: Comm) -> None:
        """Queue a comm message, for a reader who follows outputs; it is not part of the result."""
        if self._comms and self._limit is not None and not (self._queued >= self._limit and self.stopping):
            self._queue(message, len(message.content) + sum(map(len, message.buffers)) + _CHUNK)

    def _queue(self, event: Event, size: int) -> None:
        """Queue an event, and have the kernel wait if the reader is slow."""
        self._events.append((event, size))
        self._queued += size
        self._changed.set()
        if self._queued >= (self._limit or 0) and not self.stopping and not self._paused:
            self._paused = True
            self.pause(True)

    def notify(self, notice: Notice) -> None:
        """Queue something that is not output; it waits behind what the cell wrote before."""
        if self._on_notice is not None:
            self._on_notice(notice.about)
            return
        if id(notice.about) not in self._notices:
            self._notices[id(notice.about)] = notice
            self._events.append((notice, 0))
            self._changed.set()

    def retract(self, about: object) -> None:
        """Take a notice back that nobody has read: what it is about is kept no longer, however slow the reader is."""
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
        """Let the kernel go on, whether or not anybody reads."""
        if self._paused:
            self._paused = False
            self.pause(False)

    def end(self) -> None:
        """Say that there will be no more events: the cell has ended, or could not begin."""
        self._over = True
        self._changed.set()

    async def next(self) -> Event | None:
        """Return the next event, or None when all were read and there will be no more."""
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
        """Return what another host has to know of them."""
        given = () if self._given is None else (self._given,)
        waiting = (entry for entry in self._events if not isinstance(entry[0], Notice))
        return [*given, *waiting], self._limit, self._rich, self._comms, self.given, self.stopping

    @classmethod
    def restored(cls, saved: Saved) -> CellEvents:
        """Return events that another host has queued."""
        waiting, limit, rich, comms, given, stopping = saved
        events = cls(limit, rich=rich, comms=comms)
        events.given, events.stopping = given, stopping
        for event, size in waiting:
            events._queue(event, size)
        return events
