"""One execution: the code, how to stop it, and its result."""

from __future__ import annotations

import asyncio
import functools
import operator
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

from cellblock.host.checkpoints.checkpoint import Restored
from cellblock.host.checks import check_on_input
from cellblock.host.kernels.answerers import Answerers
from cellblock.host.kernels.cell_result import Outcome, make_result
from cellblock.host.kernels.exit_status import Death
from cellblock.host.output.collect import Collector
from cellblock.host.output.values import Bundle
from cellblock.model import (
    CodeExecutionChunk,
    CodeExecutionResult,
    OutputItem,
    OutputKind,
    Recovery,
    Status,
    StreamName,
)
from cellblock.wire.messages import Comm, Reply


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


class Prompt(str):
    """The prompt of `input()` or `getpass()`, which knows which of the two asks.

    Attributes:
        password: Whether the answer must not be shown.
    """

    password: bool

    def __new__(cls, text: str, *, password: bool = False) -> Self:
        """Make the prompt."""
        made = super().__new__(cls, text)
        made.password = password
        return made


OnInput: TypeAlias = Callable[[Prompt], str | Awaitable[str | None] | None]
"""Answers `input()`: takes the prompt, a `str`, and returns the line, or None for an `EOFError` in the code.

A plain function runs in a thread, as it may block."""


Event: TypeAlias = CodeExecutionChunk | OutputItem | Cleared | Comm | Notice
"""What the reader of a cell is given while it runs."""

_CHUNK = 256
"""Bytes that a chunk in the queue costs, whatever its text."""

_MAX_EMPTY = 1000
_LETTING_GO = 1.0  # seconds; what a caller gave us to ask may not let itself be cancelled


class Cell:
    """One execution of some code in one kernel.

    Attributes:
        ended: Set when it has ended.
        reason: Why it is being stopped, if it is.
        recovery: The strongest means that was needed to stop it.
        goes_on_from: If it ended with its kernel, the state that the session goes on from; None: a fresh one.
        followed: Whether somebody reads its events.
        rich: Whether displayed values are events with all of their types, and not just text.
        silent: Whether it leaves no trace: no number, no history.
        parent: The id of the Jupyter message that asks for it; empty if no Jupyter client does.
        failure: What a callback of the caller has raised; it is the caller's when the cell has ended.
        tag: What the caller calls it.
        on_begin: Called with where it begins (`Kernel.position`) when it is about to be sent; before, with an empty text if it
            has to wait for a kernel. What it raises keeps the cell from running.
        timeout: Seconds that it may run, if that is limited.
        given: How many events of its output the reader has taken, and asked for the next one.
    """

    def __init__(
        self,
        code: str,
        on_input: OnInput | None,
        queue_limit: int | None,
        *,
        followed: bool = False,
        rich: bool = False,
        silent: bool = False,
        parent: str = "",
        tag: str = "",
        on_begin: Callable[[str], None] | None = None,
        on_notice: Callable[[object], None] | None = None,
    ) -> None:
        """Describe an execution.

        Args:
            code: Its source.
            on_input: Answers `input()`, or None if nobody does.
            queue_limit: Bytes of chunks that may wait for a reader; None if nobody reads chunks.
            followed: Whether somebody reads its events.
            rich: Whether displayed values are to be events with all of their types.
            silent: Whether it leaves no trace in the session.
            parent: The id of the Jupyter message that asks for it.
            tag: What the caller calls it.
            on_begin: Called when it is about to be sent, or has to wait for a kernel.
            on_notice: Takes what `notify` was given, in place of a reader of events.
        """
        self.code = code
        check_on_input(on_input)
        self.on_input = on_input
        self.ended = asyncio.Event()
        self._ending: Reply | Death | None = None
        self.reason: Status | None = None
        self.recovery: Recovery | None = None
        self.goes_on_from: Restored | None = None
        self.followed = followed or on_notice is not None
        self.rich = rich
        self.silent = silent
        self.parent = parent
        self.failure: BaseException | None = None
        self.answerers = Answerers() if on_input is not None else None
        self._collector: Collector | None = None
        self._memory: int | None = None
        self._after_death = False
        self._pause: Callable[[bool], None] = lambda _paused: None
        self._escalating: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._queue_limit = queue_limit
        self._events: deque[tuple[Event, int]] = deque()
        self._queued = 0
        self._notices: dict[int, Notice] = {}
        self._empty = 0
        self._paused = False
        self._over = False
        self._changed = asyncio.Event()
        self._began = time.perf_counter()
        self._took = 0.0
        self.tag = tag
        self.on_begin = on_begin
        self._on_notice = on_notice
        self.timeout: float | None = None
        self.given = 0
        self._given: tuple[Event, int] | None = None

    @property
    def age(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self._began

    def finish(self, ending: Reply | Death) -> None:
        """Say that it has ended."""
        if self._asking is not None:
            self._asking.cancel()
        if self._ending is None:
            self._took = time.perf_counter() - self._began
            self._ending = ending
            self.ended.set()
            self._changed.set()

    # -- what its kernel does with it ----------------------------------------------------------------------------------

    def attach(
        self,
        collector: Collector,
        *,
        memory: int | None = None,
        after_death: bool = False,
        pause: Callable[[bool], None] = lambda _paused: None,
    ) -> None:
        """Say that it runs in a kernel now.

        Args:
            collector: What keeps the kernel's output.
            memory: Bytes that the kernel may use, if that is limited.
            after_death: Whether the kernel before this one died without a result to say so.
            pause: Has the kernel's output wait, or go on.
        """
        self._collector, self._memory, self._after_death, self._pause = collector, memory, after_death, pause

    @property
    def asked(self) -> bool:
        """Whether it waits for an answer to something that it asked."""
        return self._asking is not None and not self._asking.done()

    def answer(self, answering: Coroutine[Any, Any, None]) -> None:
        """Begin to answer what it asks now; it waits for one thing at a time, and no longer for what it asked before."""
        if self._asking is not None:
            self._asking.cancel()
        self._asking = asyncio.create_task(answering)

    def fail(self, error: BaseException) -> None:
        """Take note of what a callback of the caller has raised; the first of these is raised to the caller."""
        if self.failure is None:
            self.failure = error

    async def wait_unanswered(self) -> None:
        """Wait until nothing is done any more for what it asked last: a command that runs for it is killed first."""
        if self._asking is not None and not self._asking.done():
            await asyncio.wait([self._asking], timeout=_LETTING_GO)

    # -- how it is stopped, see `stopping` -----------------------------------------------------------------------------

    def begin_stop(self, reason: Status, escalate: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin to stop it, for the first reason that there is.

        Args:
            reason: Why.
            escalate: Stops its code by ever stronger means.
        """
        if self._escalating is None and not self.ended.is_set():
            self.stopped_for(reason)
            self.release()
            self._escalating = asyncio.create_task(escalate())

    def stopped_for(self, reason: Status) -> None:
        """Say why it is being stopped; the first reason counts."""
        self.reason = self.reason or reason

    def stopped_by(self, means: Recovery) -> None:
        """Say what is being done to stop it; the last and strongest means counts."""
        self.recovery = means

    @property
    def escalating(self) -> asyncio.Task[None] | None:
        """What stops it, if something does."""
        return self._escalating

    # -- chunks for the reader of the stream ---------------------------------------------------------------------------

    @property
    def streaming(self) -> bool:
        """Whether somebody reads chunks."""
        return self._queue_limit is not None

    def emit(self, text: str, name: StreamName | None, *, ours: bool = False) -> None:
        """Queue a chunk. Where the reader is slow the kernel has to wait, unless it is being stopped.

        Args:
            text: The text.
            name: The stream, or None for a displayed value.
            ours: Whether it does not come from the kernel: that this waits would not stop it from coming, so it is dropped.
        """
        if self._queue_limit is None or not text:
            return
        if self._queued >= self._queue_limit and (ours or self.reason is not None):
            return  # the result has what is kept of it
        self._queue(CodeExecutionChunk(text, name), len(text) + _CHUNK)

    def show(self, bundle: Bundle, kind: OutputKind) -> None:
        """Queue a displayed value: as text, or with all of its types for a reader who wants them."""
        if not self.rich:
            if self._queue_limit is not None and (shown := bundle.text):
                self.emit(f"{shown}\n", None)
        elif self._queue_limit is not None and not (self._queued >= self._queue_limit and self.reason is not None):
            self._queue(bundle.item(kind), bundle.size + _CHUNK)

    def clear(self, wait: bool) -> None:
        """Queue that the output was cleared, for a reader who follows outputs."""
        if self.rich and self._queue_limit is not None:
            self._queue(Cleared(wait), _CHUNK)

    def pass_on(self, message: Comm) -> None:
        """Queue a comm message, for a reader who follows outputs; it is not part of the result."""
        if (
            self.parent
            and self._queue_limit is not None
            and not (self._queued >= self._queue_limit and self.reason is not None)
        ):
            self._queue(message, len(message.content) + sum(map(len, message.buffers)) + _CHUNK)

    def _queue(self, event: Event, size: int) -> None:
        """Queue an event, and have the kernel wait if the reader is slow."""
        self._events.append((event, size))
        self._queued += size
        self._changed.set()
        if self._queued >= (self._queue_limit or 0) and self.reason is None and not self._paused:
            self._paused = True
            self._pause(True)

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
            self._pause(False)

    def no_more(self) -> None:
        """Say that there will be no more events: it has ended, or could not begin."""
        self._over = True
        self._changed.set()

    async def next_event(self) -> Event | None:
        """Return the next event, or None when all were read and there will be no more."""
        if self._given is not None:
            self._given = None
            self.given += 1
        while True:
            while not self._events:
                if self._over or self.ended.is_set():
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
        if self._paused and self._queued < (self._queue_limit or 0) // 2:
            self.release()
        return event

    # -- on a tape -----------------------------------------------------------------------------------------------------

    def saved(self) -> tuple[Any, ...]:
        """Return what another host has to know of it. The kernel's collector is not part of it."""
        given = () if self._given is None else (self._given,)
        events = [*given, *(entry for entry in self._events if not isinstance(entry[0], Notice))]
        return (events, self.on_input is not None, *_values_to_save(self))

    @classmethod
    def restored(cls, saved: tuple[Any, ...], on_input: OnInput | None) -> Cell:
        """Return a cell that another host has begun.

        Args:
            saved: What that has saved of it.
            on_input: Answers `input()`; used if somebody did before.
        """
        events, asks, *values = saved
        cell = cls("", on_input if asks else None, None)
        for name, value in zip(_SAVED, values, strict=True):
            setattr(cell, name, value)
        for event, size in events:
            cell._queue(event, size)
        return cell

    # -- the result ----------------------------------------------------------------------------------------------------

    async def finished(self, images_dir: Path) -> CodeExecutionResult:
        """Make the result, once it has ended: in a thread, if there is much to decode or to write."""
        assert self._collector is not None
        self._collector.close()
        if not self._collector.large:
            return self.result(images_dir)
        await self._collector.written()
        return await asyncio.get_running_loop().run_in_executor(_pool(), self.result, images_dir)

    def result(self, images_dir: Path) -> CodeExecutionResult:
        """Make the result, once its output is complete."""
        assert self._ending is not None
        assert self._collector is not None
        outcome = Outcome(
            self._ending,
            self._collector,
            self._took,
            self.reason,
            self.recovery,
            self.goes_on_from,
            self._after_death,
            self._memory,
        )
        return make_result(outcome, images_dir)

    @property
    def died(self) -> bool:
        """Whether it has ended with its kernel."""
        return isinstance(self._ending, Death)


_SAVED = (
    "code",
    "_queue_limit",
    "followed",
    "rich",
    "silent",
    "tag",
    "parent",
    "timeout",
    "given",
    "reason",
    "recovery",
    "_began",
)
_values_to_save = operator.attrgetter(*_SAVED)


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """Threads that make results. Not asyncio's, which may all be waiting for somebody to answer `input()`."""
    return ThreadPoolExecutor(2, thread_name_prefix="cellblock-result")
