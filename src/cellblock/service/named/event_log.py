"""Numbered events of an execution: written to the journal, then passed to readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cellblock.host.kernels.cell import Cleared
from cellblock.model import CodeExecutionChunk, CodeExecutionResult, OutputItem
from cellblock.model.sessions import EventKind, ExecutionEvent
from cellblock.service.store.journal import Journal
from cellblock.wire.messages import Comm
from cellblock.wire.packed import Packed, pack

MAX_EVENTS = 10_000
MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Bytes of the events of one execution that are kept, the last ones. The result has the rest, within `Limits`."""

_DROPPED_AT_ONCE = 256


class Prepared(NamedTuple):
    """The packed data of a future event.

    Attributes:
        packed: The data, packed.
        ahead: The file that it was already written to; None if it is small.
    """

    packed: Packed
    ahead: Path | None = None


class EventLog:
    """The events of one execution in this process.

    Attributes:
        size: Bytes of the kept events.
        given: Number of events taken from the session so far; the next process continues there.
        ended: Whether the last event was added.
        count: Number of events.
    """

    def __init__(self, journal: Journal, execution: str) -> None:
        self.size = 0
        self.given = 0
        self.ended = False
        self._journal = journal
        self._execution = execution
        self._events: dict[int, tuple[EventKind, Mapping[str, Any] | CodeExecutionResult, int]] = {}
        self.count = 0
        self._before = 0  # events of the previous process, which only the journal has
        self._dropped = 0
        self._told = 0
        self._telling = False
        self._readers = 0
        self._changed = asyncio.Event()
        self._when_settled: list[Callable[[], object]] = []

    def go_on(self) -> None:
        """Continue after the last event in the journal."""
        self.count, self.given = self._journal.progress(self._execution)
        self._told = self._dropped = self._before = self.count

    # -- adding --------------------------------------------------------------------------------------------------------

    async def prepare(self, data: Mapping[str, Any], *, large: bool = False) -> Prepared:
        """Pack data for an event. Very large data is written to a file, while other events can be added.

        Args:
            data: The data.
            large: Whether to pack it in a thread.
        """
        packed = await asyncio.to_thread(pack, data) if large else pack(data)
        return Prepared(packed, await self._journal.write_ahead(packed))

    def add(self, kind: EventKind, data: Mapping[str, Any], prepared: Prepared | None = None) -> None:
        """Add an event. Beyond the limit, the oldest events are dropped.

        Args:
            kind: The event's kind.
            data: The event's data.
            prepared: The result of `prepare`, required for data that can be large.
        """
        self._enter(kind, data, prepared or Prepared(pack(data)))

    def end(self, kind: EventKind, data: Mapping[str, Any] | CodeExecutionResult, prepared: Prepared) -> None:
        """Add the last event (see `add`), and notify readers."""
        self.ended = True
        self._enter(kind, data, prepared)
        self._journal.writer.make_safe()
        self._tell()

    def _enter(self, kind: EventKind, data: Mapping[str, Any] | CodeExecutionResult, prepared: Prepared) -> None:
        packed, ahead = prepared
        self.count += 1
        self._journal.event(self._execution, self.count, kind, packed, self.given, ahead)
        self._events[self.count] = (kind, data, len(packed))
        self.size += len(packed)
        if len(self._events) > MAX_EVENTS or (self.size > MAX_EVENT_BYTES and len(self._events) > 1):
            self._drop()
        if self._readers and not self.ended:
            self._tell_soon()

    def _drop(self) -> None:
        """Drop the oldest events, in batches so that not every event pays for it."""
        while len(self._events) > 1 and (len(self._events) > MAX_EVENTS - _DROPPED_AT_ONCE or self.size > MAX_EVENT_BYTES):
            self._dropped += 1
            self.size -= self._events.pop(self._dropped)[2]
        self._journal.drop(self._execution, self._dropped)

    def _tell_soon(self) -> None:
        if not self._telling:
            self._telling = True
            self._journal.writer.when_safe(self._tell)

    def _tell(self) -> None:
        """Pass events that the journal now contains to readers. If the journal cannot be written, pass them anyway."""
        self._telling = False
        self._told = self.count
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if self.settled:
            functions, self._when_settled = self._when_settled, []
            for function in functions:
                function()

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether the last event was added and passed to readers."""
        return self.ended and self._told == self.count

    def when_settled(self, function: Callable[[], object]) -> None:
        """Call a function when the log is `settled`, or at once if it already is."""
        if self.settled:
            function()
        else:
            self._when_settled.append(function)

    async def settle(self) -> None:
        """Wait until the log is `settled`."""
        while not self.settled:
            await self._changed.wait()

    async def follow(self, after: int) -> AsyncGenerator[ExecutionEvent, None]:
        """Yield events after a number as they arrive, until the last. A ``gap`` replaces dropped events."""
        self._readers += 1
        try:
            async for event in self._after(after):
                yield event
        finally:
            self._readers -= 1

    async def _after(self, after: int) -> AsyncGenerator[ExecutionEvent, None]:
        if self._told < self.count:
            self._tell_soon()
        if after < self._before:
            async for event in self._of_the_process_before(after):
                yield event
                after = event.seq
        while True:
            changed = self._changed
            if after < self._dropped <= self._told:
                yield ExecutionEvent(self._dropped, "gap", {"dropped": self._dropped - after})
                after = self._dropped
            while after < self._told and after >= self._dropped:
                after += 1
                kind, data, _ = self._events[after]
                yield ExecutionEvent(after, kind, data.to_dict(raw=True) if isinstance(data, CodeExecutionResult) else data)
            if after < self._dropped <= self._told:
                continue
            if self.ended and after >= self.count:
                return
            await changed.wait()

    async def _of_the_process_before(self, after: int) -> AsyncGenerator[ExecutionEvent, None]:
        async for event in self._journal.events(self._execution, after):
            if event.seq > self._before:
                return
            yield event


def shown(event: CodeExecutionChunk | OutputItem | Comm | Cleared) -> tuple[EventKind, dict[str, Any]]:
    """Convert a session's event to the kind and data of an execution event."""
    match event:
        case CodeExecutionChunk(text=text, name=name):
            return "stream", {"name": name or "stdout", "text": text}
        case OutputItem():
            return "display", event.to_dict(raw=True)
        case Comm(kind=kind, content=content, buffers=buffers):
            return "comm", {"kind": kind, "content": content, "buffers": [*buffers]}
        case Cleared(wait=wait):
            return "clear", {"wait": wait}
