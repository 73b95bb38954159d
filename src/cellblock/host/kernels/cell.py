"""One execution: its arguments, its events for a reader, how to stop it, and its result."""

from __future__ import annotations

import asyncio
import functools
import operator
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

from cellblock.common.threads import Threads
from cellblock.errors import InvalidInputError, shown
from cellblock.host.kernels import advice
from cellblock.host.kernels.answerers import Answerers
from cellblock.host.kernels.exit_status import Death, Restored
from cellblock.host.output.collect import Bundle, Collector
from cellblock.host.output.spill import save_images
from cellblock.model import (
    STATE_LOST,
    CodeExecutionChunk,
    CodeExecutionResult,
    ErrorInfo,
    OutputItem,
    OutputKind,
    Recovery,
    Status,
    StreamName,
)
from cellblock.model.blocks import pictures
from cellblock.wire.fields import MAX_CODE
from cellblock.wire.messages import Comm, Reply

_CHUNK = 256
"""Bytes that a queued chunk counts for, on top of its text."""

_MAX_EMPTY = 1000
_LETTING_GO = 1.0  # seconds; the caller's function may ignore a cancellation

_NAMES = {"timeout": "TimeoutError", "interrupted": "KeyboardInterrupt"}
_REASONS = {"timeout": "The cell was stopped at its deadline", "interrupted": "The cell was interrupted"}
_RUNGS = {
    "interrupted": "by an interrupt",
    "interrupted_twice": "by a second interrupt",
    "killed_children": "by killing the processes that it had started",
}


# -- arguments ---------------------------------------------------------------------------------------------------------


class Prompt(str):
    """The prompt of `input()` or `getpass()`.

    Attributes:
        password: Whether the answer must not be shown.
    """

    password: bool

    def __new__(cls, text: str, *, password: bool = False) -> Self:
        made = super().__new__(cls, text)
        made.password = password
        return made


OnInput: TypeAlias = Callable[[Prompt], str | Awaitable[str | None] | None]
"""Answers `input()`: takes the prompt, a `str`, and returns the line, or None to raise `EOFError` in the code.

A plain function runs in a thread, because it may block."""


def check_code(code: str) -> None:
    """Validate a cell's source.

    Raises:
        InvalidInputError: The source is invalid.
    """
    if not isinstance(code, str):
        raise InvalidInputError(f"code must be a string, not {type(code).__name__}")
    if (index := code.find("\0")) >= 0:
        raise InvalidInputError(f"the code has a NUL character at index {index}; Python source cannot contain one: use '\\0'")
    try:
        size = len(code.encode())
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"the code has a lone surrogate at index {error.start}; write it as an escape such as '\\ud800'"
        ) from None
    if size > MAX_CODE:
        raise InvalidInputError(
            f"the code has {size:,} bytes, over the limit of {MAX_CODE:,}; put the data in a file and read it from there"
        )


_FENCE = "```"


def without_fence(code: str) -> str:
    """Return the code inside a Markdown fence that encloses the whole text, as language models often write."""
    text = code.strip()
    if not text.startswith(_FENCE) or not text.endswith("\n" + _FENCE):
        return code
    first, _, rest = text.partition("\n")
    language = first.removeprefix(_FENCE).strip().lower()
    return rest.removesuffix(_FENCE) if language in ("", "py", "python", "python3", "ipython") else code


def check_place(code: str, cursor: int | None) -> tuple[str, int]:
    """Validate some code and a cursor in it, and return both. The default cursor is the end.

    Raises:
        InvalidInputError: The code is invalid, or the cursor is outside it.
    """
    check_code(code)
    if cursor is None:
        return code, len(code)
    if isinstance(cursor, bool) or not isinstance(cursor, int) or not 0 <= cursor <= len(code):
        raise InvalidInputError(f"cursor must be an index from 0 to {len(code)}, not {shown(cursor)}")
    return code, cursor


def check_on_input(on_input: object) -> None:
    """Check that the handler of `input()` is callable.

    Raises:
        InvalidInputError: It is not.
    """
    if on_input is not None and not callable(on_input):
        raise InvalidInputError(f"on_input must be a function that takes the prompt and returns the line, not {on_input!r}")


# -- events ------------------------------------------------------------------------------------------------------------


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


# -- the cell ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rights:
    """The permissions of a kernel that results explain.

    Attributes:
        memory: Memory limit in bytes, if any.
        installs: Whether the kernel may install packages.
        sandboxed: Whether the kernel is in a sandbox.
        offline: Why the kernel has no network; empty if it has one.
    """

    memory: int | None = None
    installs: bool = True
    sandboxed: bool = False
    offline: str = ""


NO_LIMITS = Rights()


class Cell:
    """One execution of code in one kernel.

    Attributes:
        ended: Set at the end.
        reason: Why the cell is being stopped, if it is.
        recovery: The strongest means that was needed to stop it.
        goes_on_from: The state that the session restores if the kernel died with the cell; None for a fresh kernel.
        not_undoable: Why the cell cannot be undone; empty if it can, or if undo is off.
        says_so: Whether the output says that the cell cannot be undone.
        afterwards: A sentence about the session's next step, if the cell was stopped for it; else empty.
        events: The queue of events for the reader.
        followed: Whether events have a reader.
        silent: Whether the cell has no execution number and no history entry.
        looks: Whether the cell only reads variables, so that an earlier undo can still be reverted.
        parent: The id of the requesting Jupyter message; empty without a Jupyter client.
        failure: An exception of a caller's callback, raised to the caller at the end.
        tag: The caller's label.
        on_begin: Called with the position (`Kernel.position`) before the cell is sent; first with an empty text if the cell
            must wait for a kernel. If it raises, the cell does not run.
        timeout: Time limit in seconds, if any.
        trusted: Whether it is the program's own code, whose commands need no approval.
        traceparent: The trace context for the code; empty without tracing.
        counted: Whether the session has counted the cell, because an earlier host saw its end.
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
        trusted: bool = False,
    ) -> None:
        """Store the arguments.

        Args:
            code: The source.
            on_input: Answers `input()`, if given.
            queue_limit: Limit in bytes of queued chunks; None without a reader of chunks.
            followed: Whether events have a reader.
            rich: Whether displayed values are queued with all MIME types.
            silent: As for the attribute.
            parent: As for the attribute.
            tag: The caller's label.
            on_begin: As for the attribute.
            on_notice: Receives the subject of each notice, instead of a reader of events.
            trusted: As for the attribute.
        """
        self.code = code
        check_on_input(on_input)
        self.on_input = on_input
        self.ended = asyncio.Event()
        self._ending: Reply | Death | None = None
        self.reason: Status | None = None
        self.recovery: Recovery | None = None
        self.goes_on_from: Restored | None = None
        self.not_undoable = self.afterwards = self.traceparent = ""
        self.says_so = self.looks = self.counted = False
        self.followed = followed or on_notice is not None
        self.silent = silent
        self.trusted = trusted
        self.parent = parent
        self.failure: BaseException | None = None
        self.answerers = Answerers() if on_input is not None else None
        self._collector: Collector | None = None
        self._rights = Rights()
        self._after_death: Recovery | None = None
        self._escalating: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self.events = CellEvents(queue_limit, rich=rich, comms=bool(parent), on_notice=on_notice)
        self._began = time.perf_counter()
        self._took = 0.0
        self.tag = tag
        self.on_begin = on_begin
        self.timeout: float | None = None

    @property
    def age(self) -> float:
        """Seconds since the cell began."""
        return time.perf_counter() - self._began

    def finish(self, ending: Reply | Death) -> None:
        """Mark the cell as ended."""
        if self._asking is not None:
            self._asking.cancel()
        if self._ending is None:
            self._took = time.perf_counter() - self._began
            self._ending = ending
            self.ended.set()
            self.events.end()

    # -- in the kernel -------------------------------------------------------------------------------------------------

    def attach(
        self,
        collector: Collector,
        *,
        rights: Rights = NO_LIMITS,
        after_death: Recovery | None = None,
        pause: Callable[[bool], None] = lambda _paused: None,
    ) -> None:
        """Connect the cell to the kernel that runs it.

        Args:
            collector: Collects the kernel's output.
            rights: The kernel's permissions.
            after_death: The recovery to report for the previous kernel, if its death is unreported.
            pause: Pauses (True) or resumes the kernel's output.
        """
        self._collector, self._rights, self._after_death = collector, rights, after_death
        self.events.pause = pause

    @property
    def asked(self) -> bool:
        """Whether a request of the code waits for an answer."""
        return self._asking is not None and not self._asking.done()

    def answer(self, answering: Coroutine[Any, Any, None]) -> None:
        """Start to answer the current request, and cancel the answer to an earlier one. A cell waits for one at a time."""
        if self._asking is not None:
            self._asking.cancel()
        self._asking = asyncio.create_task(answering)

    def fail(self, error: BaseException) -> None:
        """Record an exception of a caller's callback. The first one is raised to the caller."""
        if self.failure is None:
            self.failure = error

    async def wait_unanswered(self) -> None:
        """Wait until the last request's handler has ended. A command that runs for it is killed first."""
        if self._asking is not None and not self._asking.done():
            await asyncio.wait([self._asking], timeout=_LETTING_GO)

    # -- stopping, see `stopping` --------------------------------------------------------------------------------------

    def begin_stop(self, reason: Status, escalate: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start to stop the cell. Only the first call has an effect.

        Args:
            reason: Why.
            escalate: Stops the code by increasingly strong means.
        """
        if self._escalating is None and not self.ended.is_set():
            self.stopped_for(reason)
            self.events.release()
            self._escalating = asyncio.create_task(escalate())

    def stopped_for(self, reason: Status) -> None:
        """Record why the cell is being stopped. The first reason counts."""
        self.reason = self.reason or reason
        self.events.stopping = True

    def stopped_by(self, means: Recovery) -> None:
        """Record how the cell is being stopped. The last and strongest means counts."""
        self.recovery = means

    @property
    def settled(self) -> bool:
        """Whether the cell has ended, and nothing was sent to stop it and no answer is in flight."""
        return self.ended.is_set() and self._escalating is None and not self.asked

    @property
    def escalating(self) -> asyncio.Task[None] | None:
        """The task that stops the cell, if any."""
        return self._escalating

    # -- serialization -------------------------------------------------------------------------------------------------

    def saved(self) -> tuple[Any, ...]:
        """Return the state for another host, without the kernel's collector."""
        return (self.events.saved(), self.on_input is not None, *_values_to_save(self))

    @classmethod
    def restored(cls, saved: tuple[Any, ...], on_input: OnInput | None) -> Cell:
        """Return a cell that another host started.

        Args:
            saved: Its state, from `saved`.
            on_input: Answers later calls of `input()`, if the cell had a handler before. With None, the code gets an EOFError.
                Questions that the other host has answered stay answered.
        """
        events, asks, *values = saved
        cell = cls("", (on_input or _no_answer) if asks else None, None)
        for name, value in zip(_SAVED, values, strict=True):
            setattr(cell, name, value)
        cell.events = CellEvents.restored(events)
        return cell

    # -- the result ----------------------------------------------------------------------------------------------------

    def note(self, line: str) -> None:
        """Add a line at the end of the output, before the result is made."""
        assert self._collector is not None
        self._collector.note(line)

    async def finished(self, images_dir: Path) -> CodeExecutionResult:
        """Create the result after the end, in a thread if there is much to decode or write. Its notes are the last events."""
        assert self._collector is not None
        self._collector.close()
        result = await self._result_aside(images_dir) if self._collector.large else self.result(images_dir)
        for line in self._collector.unsaid:
            self.events.emit(f"{line}\n", "stderr", ours=True)
        return result

    async def _result_aside(self, images_dir: Path) -> CodeExecutionResult:
        assert self._collector is not None
        await self._collector.written()
        try:
            making = asyncio.get_running_loop().run_in_executor(_pool(), self.result, images_dir)
        except RuntimeError:  # no thread can be started: block the loop rather than lose the result
            return self.result(images_dir)
        return await making

    def result(self, images_dir: Path) -> CodeExecutionResult:
        """Create the result from the complete output.

        Args:
            images_dir: Directory for images.
        """
        ending, collector = self._ending, self._collector
        assert ending is not None
        assert collector is not None
        items = collector.items()
        images: list[Path] = []
        if found := [*pictures(items)]:
            images, failures = save_images(found, images_dir)
            for failure in failures:
                collector.note(failure)
            items = collector.items() if failures else items
        printed = "".join(item.text or "" for item in items if item.kind == "stream") if self._rights.sandboxed else ""
        if printed and (why := advice.on_output(printed, self._rights.offline)):
            collector.note(f"[cellblock] {why}")
            items = collector.items()
        if self.says_so:
            collector.notes.append(f"[cellblock] This cell cannot be undone: {self.not_undoable}.")
            items = collector.items()
        error, status = self._died(ending) if isinstance(ending, Death) else self._replied(ending)
        if error is not None:
            _show(error, ending, items)
        values = [item.text for item in items if item.kind == "execute_result"]
        return CodeExecutionResult(
            text=readable(items),
            images=images,
            status=status,
            output="".join(item.text or "" for item in items if item.name == "stdout"),
            stderr="".join(item.text or "" for item in items if item.name == "stderr"),
            return_value=values[-1] if values else None,
            error=error,
            execution_count=ending.execution_count if isinstance(ending, Reply) else None,
            duration_ms=round(self._took * 1000),
            outputs=items,
            truncated=collector.truncated,
            recovery=self._recovered(ending),
            spilled=collector.spilled,
            exit_status=ending.exit_status if isinstance(ending, Death) and status == "died" else None,
            not_undoable=self.not_undoable,
        )

    def _recovered(self, ending: Reply | Death) -> Recovery | None:
        if isinstance(ending, Death) and self.goes_on_from is not None:
            return "restored_earlier" if self.goes_on_from.lost else "restored"
        return "restarted" if isinstance(ending, Death) else self._after_death or self.recovery

    def _died(self, death: Death) -> tuple[ErrorInfo, Status]:
        """Return the error and the status of a cell that ended with its kernel."""
        lost = self.afterwards or (STATE_LOST if self.goes_on_from is None else self.goes_on_from.sentence)
        if self.reason is None:
            return ErrorInfo("KernelDied", f"The kernel died: {death.cause}. {lost}"), "died"
        return ErrorInfo(_NAMES[self.reason], f"{_REASONS[self.reason]}: its kernel was killed. {lost}"), self.reason

    def _replied(self, reply: Reply) -> tuple[ErrorInfo | None, Status]:
        """Return the error, if any, and the status of a cell that the worker ended."""
        if self.reason is not None:
            name = _NAMES[self.reason]
            how = _RUNGS[self.recovery or "interrupted"]
            told = f"{_REASONS[self.reason]} ({how}). {self.afterwards or 'Variables are kept.'}"
            return ErrorInfo(name, told, _retell(reply.traceback, "KeyboardInterrupt", name, told)), self.reason
        if reply.ename is None:
            return None, "success"
        if how := self._advice(reply, reply.ename):
            told = f"{reply.evalue} ({how})" if reply.evalue else how
            return ErrorInfo(reply.ename, told, _retell(reply.traceback, reply.ename, reply.ename, told)), "error"
        return ErrorInfo(reply.ename, reply.evalue, list(reply.traceback)), "error"

    def _advice(self, reply: Reply, name: str) -> str:
        """Return what to do about an exception; empty if there is no advice."""
        rights = self._rights
        if name.endswith("MemoryError") and rights.memory is not None:
            return f"out of memory: the session may use {rights.memory >> 20:,} MiB; {advice.more_memory(rights.memory)}"
        how = advice.on_missing_module(name, reply.evalue, installs=rights.installs)
        return how or (advice.on_kept_name(name, reply.evalue) if rights.sandboxed else "")

    @property
    def died(self) -> bool:
        """Whether the cell ended with its kernel."""
        return isinstance(self._ending, Death)


def _no_answer(_: str) -> None:
    """Answer with the end of input."""


_SAVED = (
    "code",
    "followed",
    "silent",
    "tag",
    "parent",
    "timeout",
    "reason",
    "recovery",
    "_began",
)
_values_to_save = operator.attrgetter(*_SAVED)


@functools.cache
def _pool() -> Threads:
    """Return the threads that create results. asyncio's own may all be waiting for answers to `input()`."""
    return Threads(2, "cellblock-result")


# -- results as text ---------------------------------------------------------------------------------------------------


def _show(error: ErrorInfo, ending: Reply | Death, items: list[OutputItem]) -> None:
    """Show an error among the outputs of its cell."""
    shown = OutputItem("error", text="\n".join(error.traceback) or f"{error.ename}: {error.evalue}")
    # An error that did not end the cell was already shown with the worker's text.
    told = "\n".join(ending.traceback) if isinstance(ending, Reply) else shown.text
    there = [number for number, item in enumerate(items) if item.kind == "error" and item.text in (told, shown.text)]
    if there:
        items[there[-1]] = shown
    else:
        items.insert(_place(items, ending.later if isinstance(ending, Reply) else 0), shown)


def _place(items: list[OutputItem], later: int) -> int:
    """Return the index for an error: before the last `later` displayed values."""
    place = len(items)
    for number in range(len(items) - 1, -1, -1):
        if not later:
            break
        if items[number].kind == "display_data":
            place, later = number, later - 1
    return place


def _retell(traceback: tuple[str, ...], before: str, name: str, told: str) -> list[str]:
    """Return a traceback with another text for its exception.

    Args:
        traceback: Its parts, from IPython.
        before: The exception's name in it. If it ends with another name, the new text is appended.
        name: The replacement name.
        told: The new text.
    """
    parts = list(traceback)
    if parts and parts[-1].startswith(f"{before}:"):
        parts.pop()
        parts = [name + part[len(before) :] if part.startswith(f"{before} ") else part for part in parts]
    return [*parts, f"{name}: {told}"]


def readable(items: list[OutputItem]) -> str | None:
    """Return outputs as plain text, without surrounding empty lines; None for no outputs."""
    text: list[str] = []
    for item in items:
        if not item.text:
            continue
        # Streams continue where they stopped. A displayed value or a traceback starts on a new line.
        if item.kind != "stream" and text and not text[-1].endswith("\n"):
            text.append("\n")
        text.append(item.text)
        if item.kind != "stream":
            text.append("\n")
    if not text:
        return None
    if any("\r" in piece for piece in text):
        text = [overwrite("".join(text))]
    return _joined(text)


def _joined(text: list[str]) -> str:
    """Join text without surrounding empty lines and trailing space. Strip first, as two copies may not fit into memory."""
    for place, piece in enumerate(text):
        text[place] = piece.lstrip("\n")
        if text[place]:
            break
    for place in range(len(text) - 1, -1, -1):
        text[place] = text[place].rstrip()
        if text[place]:
            break
    return "".join([piece for piece in text if piece])  # with one piece, join returns it without a copy


def overwrite(text: str) -> str:
    """Return text as a terminal shows it: a carriage return moves to the start of the line, as in progress bars."""
    return "\n".join(_overwritten(line) if "\r" in line else line for line in text.replace("\r\n", "\n").split("\n"))


def _overwritten(line: str) -> str:
    """Return the visible part of a line. The last piece that reaches a column wins, so start with the last one."""
    shown: list[str] = []
    width, end = 0, len(line)
    while end >= 0:
        start = line.rfind("\r", 0, end) + 1
        if end - start > width:
            shown.append(line[start + width : end])
            width = end - start
        end = start - 1
    return "".join(shown)
