"""One execution: its code, how to stop it, and its result."""

from __future__ import annotations

import asyncio
import functools
import operator
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Self, TypeAlias

from cellblock.common.threads import Threads
from cellblock.host.checks import check_on_input
from cellblock.host.kernels.answerers import Answerers
from cellblock.host.kernels.cell_events import CellEvents
from cellblock.host.kernels.cell_result import NO_LIMITS, Outcome, Rights, make_result
from cellblock.host.kernels.exit_status import Death, Restored
from cellblock.host.output.collect import Collector
from cellblock.model import (
    CodeExecutionResult,
    Recovery,
    Status,
)
from cellblock.wire.messages import Reply


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


_LETTING_GO = 1.0  # seconds; the caller's function may ignore a cancellation


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
        self.not_undoable = ""
        self.says_so = False
        self.afterwards = ""
        self.followed = followed or on_notice is not None
        self.silent = silent
        self.looks = False
        self.trusted = trusted
        self.counted = False
        self.traceparent = ""
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
        """Create the result from the complete output."""
        assert self._ending is not None
        assert self._collector is not None
        outcome = Outcome(
            self._ending,
            self._collector,
            self._took,
            self.reason,
            self.recovery,
            self.goes_on_from,
            self.afterwards,
            self._after_death,
            self._rights,
            self.not_undoable,
            self.says_so,
        )
        return make_result(outcome, images_dir)

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
