"""One execution: the code, how to stop it, and its result."""

from __future__ import annotations

import asyncio
import functools
import operator
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Self, TypeAlias

from cellblock.host.checkpoints.rolling import Restored
from cellblock.host.checks import check_on_input
from cellblock.host.kernels.answerers import Answerers
from cellblock.host.kernels.cell_events import CellEvents
from cellblock.host.kernels.cell_result import NO_LIMITS, Outcome, Rights, make_result
from cellblock.host.kernels.exit_status import Death
from cellblock.host.output.collect import Collector
from cellblock.model import (
    CodeExecutionResult,
    Recovery,
    Status,
)
from cellblock.threads import Threads
from cellblock.wire.messages import Reply


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


_LETTING_GO = 1.0  # seconds; the caller's function may not react to a cancellation


class Cell:
    """One execution of some code in one kernel.

    Attributes:
        ended: Set when it has ended.
        reason: Why it is being stopped, if it is.
        recovery: The strongest means that was needed to stop it.
        goes_on_from: If it ended with its kernel, the state that the session goes on from; None: a fresh one.
        not_undoable: Why it cannot be undone; empty if it can, or if nobody has asked for that.
        says_so: Whether its output says so.
        afterwards: If it was stopped because something else is to happen to the session, a sentence about that; else empty.
        events: What its reader is given while it runs.
        followed: Whether somebody reads its events.
        silent: Whether it leaves no trace: no number, no history.
        parent: The id of the Jupyter message that asks for it; empty if no Jupyter client does.
        failure: What a callback of the caller has raised; it is the caller's when the cell has ended.
        tag: What the caller calls it.
        on_begin: Called with where it begins (`Kernel.position`) when it is about to be sent; before, with an empty text if it
            has to wait for a kernel. What it raises keeps the cell from running.
        timeout: Seconds that it may run, if that is limited.
        trusted: Whether it is the program's own, so that nobody is asked about its commands.
        counted: Whether it is among those that the session ran already: an earlier host has seen its end.
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
            trusted: Whether it is the program's own.
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
        self.trusted = trusted
        self.counted = False
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
            self.events.end()

    # -- what its kernel does with it ----------------------------------------------------------------------------------

    def attach(
        self,
        collector: Collector,
        *,
        rights: Rights = NO_LIMITS,
        after_death: Recovery | None = None,
        pause: Callable[[bool], None] = lambda _paused: None,
    ) -> None:
        """Say that it runs in a kernel now.

        Args:
            collector: What keeps the kernel's output.
            rights: What the kernel may do.
            after_death: What its result says of the kernel before this one, if that died without a result to say so.
            pause: Has the kernel's output wait, or go on.
        """
        self._collector, self._rights, self._after_death = collector, rights, after_death
        self.events.pause = pause

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
            self.events.release()
            self._escalating = asyncio.create_task(escalate())

    def stopped_for(self, reason: Status) -> None:
        """Say why it is being stopped; the first reason counts."""
        self.reason = self.reason or reason
        self.events.stopping = True

    def stopped_by(self, means: Recovery) -> None:
        """Say what is being done to stop it; the last and strongest means counts."""
        self.recovery = means

    @property
    def escalating(self) -> asyncio.Task[None] | None:
        """What stops it, if something does."""
        return self._escalating

    # -- on a tape -----------------------------------------------------------------------------------------------------

    def saved(self) -> tuple[Any, ...]:
        """Return what another host has to know of it. The kernel's collector is not part of it."""
        return (self.events.saved(), self.on_input is not None, *_values_to_save(self))

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
        cell.events = CellEvents.restored(events)
        return cell

    # -- the result ----------------------------------------------------------------------------------------------------

    async def finished(self, images_dir: Path) -> CodeExecutionResult:
        """Make the result, once it has ended: in a thread, if there is much to decode or to write."""
        assert self._collector is not None
        self._collector.close()
        if not self._collector.large:
            return self.result(images_dir)
        await self._collector.written()
        try:
            making = asyncio.get_running_loop().run_in_executor(_pool(), self.result, images_dir)
        except RuntimeError:  # there is no room for the first thread: this holds up the loop, and the result is not lost
            return self.result(images_dir)
        return await making

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
            self.afterwards,
            self._after_death,
            self._rights,
            self.not_undoable,
            self.says_so,
        )
        return make_result(outcome, images_dir)

    @property
    def died(self) -> bool:
        """Whether it has ended with its kernel."""
        return isinstance(self._ending, Death)


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
    """Threads that make results. Not asyncio's, which may all be waiting for somebody to answer `input()`."""
    return Threads(2, "cellblock-result")
