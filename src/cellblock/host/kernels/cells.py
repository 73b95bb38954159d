"""The cells and questions of one session: one at a time, in FIFO order."""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Literal

from cellblock.common.tasks import despite_cancellation
from cellblock.errors import BusyError, CellblockError, LaunchError, StateError
from cellblock.host.checks import DEFAULT_TIMEOUT
from cellblock.host.kernels.cell import Cell, Event, Notice, OnInput, check_code
from cellblock.host.kernels.channel import Extra
from cellblock.host.kernels.exit_status import Restored
from cellblock.host.kernels.kernel import Kernel
from cellblock.host.kernels.kernel_slot import KernelSlot
from cellblock.host.kernels.requests import answering
from cellblock.host.kernels.session_state import SessionState
from cellblock.host.kernels.state_events import Unsent
from cellblock.host.kernels.stopping import answer_to, begin_stop, kill, leave
from cellblock.host.options import SessionHooks
from cellblock.host.telemetry import SessionTrace
from cellblock.model import CodeExecutionChunk, CodeExecutionResult, HistoryEntry, KeptResult, OutputItem, StreamName
from cellblock.model.programs import ExecResult
from cellblock.wire.messages import VALUE_MIME, Answer, Changed, Question

_log = logging.getLogger("cellblock.sessions")

_ATTEMPTS = 3
_HISTORY_CODE = 100_000
_OVERHEAD = 1000  # memory of a result in addition to its text and values
_QUEUE = 4 * 1024 * 1024
_STEP = 0.01
"""Seconds between checks of `uncounted_seconds`, while it grows as fast as time passes."""


class CellObserver:
    """An observer of a session's cells, which makes them undoable. By default, undo is off."""

    def request_begins(self) -> None:
        """Handle a request that is about to wait for its turn."""

    async def turn_begins(self) -> None:
        """Return when a request's turn may begin."""

    def turn_ended(self) -> None:
        """Handle the end of a cell or another request."""

    def turn_left(self) -> None:
        """Handle the end of a turn, whether or not anything was sent to the kernel."""

    def before_cell(self) -> str:
        """Return why the next cell cannot be undone; empty if it can, or if undo is off."""
        return ""

    async def after_cell(self, state: int) -> str:
        """Return why the last cell cannot be undone; empty if it can, or if that was known before it began.

        Args:
            state: The state in which the cell began.
        """
        return ""

    def can_recover(self, dead: Kernel) -> bool:
        """Return whether the session may be able to continue from a state of a dead kernel."""
        return False

    def awaited(self, dead: Kernel) -> Restored | None:
        """Return the state that the session restores once there is room for a kernel, or None."""
        return None


class SessionWatcher:
    """An observer of a session's cells and programs. By default, it does nothing."""

    def cell_ended(self, code: str, result: CodeExecutionResult) -> None:
        """Handle the end of a cell that is not silent."""

    def program_ended(self, command: Sequence[str], result: ExecResult) -> None:
        """Handle the end of a background program."""


class Cells:
    """Runs the cells of one session.

    Attributes:
        state: Whether the session accepts cells; set by the session.
        current: The running cell, or the last one while its result is being created.
        past: The history, and its part that led to the current state.
        watchers: Observers of ended cells.
        adopted_by: The session that adopted and closes this one, if any.
    """

    def __init__(
        self,
        name: str,
        kernels: KernelSlot,
        hooks: SessionHooks,
        trace: SessionTrace,
        check_usable: Callable[[], None],
        images_dir: Path,
        history: int,
    ) -> None:
        """Start without a cell.

        Args:
            name: The session's name in messages.
            kernels: The session's kernels.
            hooks: Called when a cell begins; their time does not count.
            trace: The session's spans.
            check_usable: Checks that the host is open and belongs to this process and event loop.
            images_dir: Directory for images.
            history: Memory limit of the results in the history, in bytes.
        """
        self.state: Literal["not started", "running", "closed"] = "not started"
        self.current: Cell | None = None
        self.past = SessionState()
        self.watchers: list[SessionWatcher] = []
        self.adopted_by = ""
        self._told = ""
        """Why the last cell could not be undone."""
        self._observer = CellObserver()
        self._name = name
        self._kernels = kernels
        self._hooks = hooks
        self._trace = trace
        self._check_usable = check_usable
        self._images_dir = images_dir
        self._kept = KeptResults(history)
        self._turn = asyncio.Lock()
        self._questioned: asyncio.Future[None] | None = None
        """One for the question being answered: it is done when the answer is no longer wanted."""
        self._stops: list[str] = []
        """For each turn that waits and stops cells before it, its sentence for their results, oldest first."""
        self._resumed: tuple[Cell, asyncio.Task[CodeExecutionResult]] | None = None
        """The cell of an earlier host that was not resumed yet."""
        self._unread: asyncio.Task[None] | None = None
        """Drops what a cell of an earlier host sends that has no reader."""

    def observe(self, observer: CellObserver) -> None:
        """Set the observer of all cells, before the first request."""
        self._observer = observer

    def check(self) -> None:
        """Check that the session accepts cells from this caller.

        Raises:
            StateError: The session is not started, is closed, or waits for this caller.
        """
        self.check_running()
        self._check_not_answering()

    def check_running(self) -> None:
        """Check that the session is started and open.

        Raises:
            StateError: It is not.
        """
        if self.state == "not started":
            raise StateError(f"{self._name} is not started: use 'async with', or await start() first")
        if self.adopted_by:
            raise StateError(f"{self._name} was adopted by {self.adopted_by}, which continues from its state: use that one")
        if self.state == "closed":
            raise StateError(f"{self._name} is closed; make a new one")
        self._check_usable()

    def _check_not_answering(self) -> None:
        """Reject a call from a callback that answers a cell of this session, which would be a deadlock."""
        cell = answering.get()
        if cell is not None and cell is self.current and cell.asked:
            raise StateError(f"{self._name} is running the cell that called this function: use another session for other code")

    async def _live_kernel(self) -> Kernel:
        self.check_running()  # again: it may have been closed during the wait
        return await self._kernels.live()

    # -- cells ---------------------------------------------------------------------------------------------------------

    async def run(self, cell: Cell, timeout: float | None) -> CodeExecutionResult:
        """Run a cell in its turn."""
        self._observer.request_begins()
        async with self._turn:
            try:
                await self._observer.turn_begins()
                await self._kernels.forget_dead()
                kernel = self._kernels.ready
                if kernel is None or self.state != "running":
                    kernel = await self._next_kernel(cell)
                try:
                    with self._trace.cell(cell.code, cell.tag, silent=cell.silent) as step:
                        cell.traceparent = step.traceparent
                        result = await self._run_in(kernel, cell, timeout)
                        step.end(result)
                        return result
                finally:
                    self._observer.turn_ended()
            finally:
                self._observer.turn_left()

    @property
    def count(self) -> int:
        """The execution number of the last cell; 0 if the kernel has run none."""
        return self._kernels.count

    @property
    def busy(self) -> bool:
        """Whether something runs or is about to."""
        return self._turn.locked()

    @asynccontextmanager
    async def turn(self, *, stop: str = "") -> AsyncIterator[None]:
        """Take a turn for something other than a cell.

        Args:
            stop: If given, the running cell and those that wait for an earlier turn are stopped, not awaited, and their
                results contain this sentence.

        Raises:
            StateError: As for `check`.
        """
        self.check_running()
        if not stop:
            self._check_not_answering()
        self._observer.request_begins()
        if stop:
            self._begin_stop(stop)
            if self._questioned is not None and not self._questioned.done():
                self._questioned.set_result(None)
            self._stops.append(stop)
        try:
            await self._turn.acquire()  # nothing is awaited before, so later requests come after this one
        finally:
            if stop:
                self._stops.remove(stop)
        try:
            await self._observer.turn_begins()
            await self._kernels.forget_dead()
            self.check_running()
            yield
        finally:
            self._observer.turn_left()
            self._turn.release()

    async def stream(self, cell: Cell, timeout: float | None) -> AsyncGenerator[Event | CodeExecutionResult, None]:
        """Run a cell in its turn, and yield its events and its result."""
        # In its own task, so that the turn ends with the cell even if the reader never returns.
        running = asyncio.create_task(self.run(cell, timeout))
        running.add_done_callback(functools.partial(_no_more, cell))
        async with aclosing(self._follow(cell, running)) as events:
            async for event in events:
                yield event

    @staticmethod
    async def _follow(
        cell: Cell, running: asyncio.Task[CodeExecutionResult]
    ) -> AsyncGenerator[Event | CodeExecutionResult, None]:
        """Yield the events and the result of a cell. Stop the cell if the reader leaves."""
        try:
            for _ in range(2):  # the second time, for the notes of the result
                while (event := await cell.events.next()) is not None:
                    yield event
                await asyncio.wait([running])
        finally:
            if not running.done():
                running.cancel()
                await despite_cancellation(running)
        yield running.result()

    # -- an earlier host's cell ----------------------------------------------------------------------------------------

    async def adopt(self, kernel: Kernel, cell: Cell) -> None:
        """Continue a cell that another host started. On return, the cell has its turn, and `resume` yields its events."""
        await self._turn.acquire()
        self.current = cell
        running = asyncio.create_task(self._go_on(kernel, cell))
        running.add_done_callback(functools.partial(_no_more, cell))
        self._resumed = cell, running
        if cell.silent:  # its reader ended with that host
            self.forgo_resuming()

    async def _go_on(self, kernel: Kernel, cell: Cell) -> CodeExecutionResult:
        try:
            self._hooks.on_begin()
            if cell.reason is not None and not cell.ended.is_set():
                begin_stop(kernel, cell, cell.reason)
            remaining = None if cell.timeout is None else max(cell.timeout - cell.age, 0.0)
            with self._trace.cell(cell.code, cell.tag, silent=cell.silent, continued=True) as step:
                result = await self._wait_for(kernel, cell, self._deadline(kernel, cell, remaining))
                step.end(result)
                return result
        finally:
            self._observer.turn_ended()
            self._turn.release()

    @property
    def resumed(self) -> str | None:
        """The tag of an earlier host's last execution, running or ended; None if there is nothing to `resume`."""
        return None if self._resumed is None else self._resumed[0].tag

    def forgo_resuming(self) -> None:
        """Let an earlier host's execution finish without a reader. Otherwise its kernel would wait for one forever."""
        if self._resumed is not None:
            (cell, _), self._resumed = self._resumed, None
            self._unread = asyncio.create_task(_drop_events(cell))

    async def resume(self, skip: int = 0) -> AsyncGenerator[Event | CodeExecutionResult, None]:
        """Yield the output and the result of an earlier host's execution, as its `stream` would. Works once.

        Each request for the next event acknowledges the previous one. A reader that stored every event before that continues
        exactly where it stopped, if `skip` is the number of stored events. An execution without a stream yields only its
        result.

        Args:
            skip: Number of output events to skip from the beginning, without notices (`Notice`).

        Yields:
            As `Session.stream`.

        Raises:
            StateError: There is nothing to resume.
        """
        if self._resumed is None:
            raise StateError(f"{self._name} has no execution of an earlier host to resume")
        (cell, running), self._resumed = self._resumed, None
        skip -= cell.events.given
        async with aclosing(self._follow(cell, running)) as events:
            async for event in events:
                if skip > 0 and not isinstance(event, Notice | CodeExecutionResult):
                    skip -= 1
                else:
                    yield event

    # -- the reader of the output --------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether a cell is running."""
        return self.current is not None and not self.current.ended.is_set()

    def notify(self, about: object) -> bool:
        """Queue a `Notice` for the reader of the running cell's stream.

        Returns:
            Whether there is a reader.
        """
        cell = self.current
        if cell is None or not cell.followed or not self.running:
            return False
        cell.events.notify(Notice(about))
        return True

    def retract(self, about: object) -> None:
        """Withdraw an unread argument of `notify`."""
        if self.current is not None:
            self.current.events.retract(about)

    def tell(self, line: str) -> None:
        """Show a line to the reader of the running cell's stream, but not in the result."""
        if (kernel := self._kernels.current) is not None and self.running:
            kernel.output.add_extra(Extra(text=f"{line}\n".encode(), ours=True, kept=False))

    def note(self, line: str) -> None:
        """Show a line in the output of the running or next cell."""
        if (kernel := self._kernels.current) is not None:
            kernel.output.add_extra(Extra(text=f"{line}\n".encode(), ours=True))

    def show(self, data: Mapping[str, bytes]) -> None:
        """Show a MIME bundle in the output of the running or next cell."""
        if (kernel := self._kernels.current) is not None:
            kernel.output.add_extra(Extra(shown=dict(data)))

    # -- silent cells --------------------------------------------------------------------------------------------------

    async def run_to_look(self, code: str, on_input: OnInput | None) -> CodeExecutionResult:
        """Run a silent cell that only reads variables, so that an earlier undo can still be reverted."""
        return await self.run_silently(code, on_input, looks=True)

    async def run_silently(self, code: str, on_input: OnInput | None, *, looks: bool = False) -> CodeExecutionResult:
        """Run a silent cell. Output of background work in the meantime goes to the next cell."""
        check_code(code)
        self.check()
        cell = Cell(code, on_input, queue_limit=None, silent=True)
        cell.looks = looks
        result = await self.run(cell, DEFAULT_TIMEOUT)
        for item in result.outputs:
            _keep_text(self._kernels.current, item.name, item.text)
        return result

    async def run_and_take(
        self, code: str, on_input: OnInput | None, take: Callable[[bytes], Awaitable[None]], timeout: float | None
    ) -> CodeExecutionResult:
        """Run a silent cell, and pass on each value that it sends. The cell waits meanwhile."""
        self.check()
        cell = Cell(code, on_input, queue_limit=_QUEUE, rich=True, silent=True)
        printed = await self._take_values(cell, running := asyncio.create_task(self.run(cell, timeout)), take)
        for chunk in printed:
            _keep_text(self._kernels.current, chunk.name, chunk.text)
        return running.result()

    async def _take_values(
        self, cell: Cell, running: asyncio.Task[CodeExecutionResult], take: Callable[[bytes], Awaitable[None]]
    ) -> list[CodeExecutionChunk]:
        """Pass on each value that a cell sends, and return its printed text. If that fails, stop the cell."""
        running.add_done_callback(functools.partial(_no_more, cell))
        printed: list[CodeExecutionChunk] = []
        room = _QUEUE
        try:
            while (event := await cell.events.next()) is not None:
                if isinstance(event, CodeExecutionChunk) and room > 0:
                    printed.append(event)
                    room -= len(event.text)
                elif isinstance(event, OutputItem) and isinstance(value := event.data.get(VALUE_MIME), bytes):
                    await take(value)
            await asyncio.wait([running])
        finally:
            if not running.done():
                running.cancel()
                await despite_cancellation(running)
        return printed

    async def run_elsewhere(self, kernel: Kernel, code: str, on_input: OnInput | None = None) -> CodeExecutionResult:
        """Run a silent cell in an idle kernel outside the session."""
        return await self._run_elsewhere(kernel, Cell(code, on_input, queue_limit=None, silent=True), DEFAULT_TIMEOUT)

    async def take_elsewhere(
        self,
        kernel: Kernel,
        code: str,
        on_input: OnInput | None,
        take: Callable[[bytes], Awaitable[None]],
        timeout: float | None,
    ) -> CodeExecutionResult:
        """Run a cell as `run_and_take` does, in an idle kernel outside the session."""
        cell = Cell(code, on_input, queue_limit=_QUEUE, rich=True, silent=True)
        running = asyncio.create_task(self._run_elsewhere(kernel, cell, timeout))
        for chunk in await self._take_values(cell, running, take):
            _keep_text(kernel, chunk.name, chunk.text)
        return running.result()

    async def _run_elsewhere(self, kernel: Kernel, cell: Cell, timeout: float | None) -> CodeExecutionResult:
        cell.afterwards = "The session is unchanged."
        await kernel.wake()
        kernel.begin(cell)
        seconds = DEFAULT_TIMEOUT if timeout is None else timeout
        deadline = Deadline(seconds, lambda: 0.0, functools.partial(begin_stop, kernel, cell, "timeout"))
        try:
            await cell.ended.wait()
        finally:
            deadline.cancel()
            await leave(kernel, cell)
        return await cell.finished(self._images_dir)

    async def _next_kernel(self, cell: Cell) -> Kernel:
        """Return a kernel that accepts a cell at once. If a kernel dies during a wait, try the next one."""
        if cell.on_begin is not None:
            cell.on_begin("")
        for _ in range(_ATTEMPTS):
            await (await self._live_kernel()).wake()
            await self._observer.turn_begins()
            await self._kernels.forget_dead()
            if (kernel := self._kernels.ready) is not None:
                return kernel
        self.check_running()
        raise LaunchError(f"{self._name}: {_ATTEMPTS} kernels died before they ran the cell")

    async def _run_in(self, kernel: Kernel, cell: Cell, timeout: float | None) -> CodeExecutionResult:
        """Run a cell in a ready kernel. Nothing may wait before the cell has begun."""
        cell.timeout = timeout
        cell.not_undoable = "" if cell.silent else self._observer.before_cell()
        self.past.begin(kernel.position, cell.not_undoable, looks=cell.looks)
        if cell.on_begin is not None:
            cell.on_begin(kernel.position)
        self.past.log.settle()
        try:
            kernel.begin(cell)
        except BusyError:
            self.past.commit(Unsent())
            if cell.on_begin is not None:
                cell.on_begin("")
            raise
        self.current = cell
        _log.debug("%s: cell begun, timeout %s s", self._name, timeout)
        self._hooks.on_begin()
        if self._stops:  # it was submitted before the turn that stops it
            self._begin_stop(self._stops[0])
        return await self._wait_for(kernel, cell, self._deadline(kernel, cell, timeout))

    async def _wait_for(self, kernel: Kernel, cell: Cell, deadline: Deadline | None) -> CodeExecutionResult:
        try:
            await cell.ended.wait()
        finally:
            if deadline is not None:
                deadline.cancel()
            try:
                if not cell.settled:
                    await leave(kernel, cell)
            finally:
                self.current = None
                if cell.reason is not None:
                    self._kernels.code_stopped()
        return await self._finished(cell)

    def _deadline(self, kernel: Kernel, cell: Cell, timeout: float | None) -> Deadline | None:
        if timeout is None:
            return None
        return Deadline(timeout, self._hooks.uncounted_seconds, functools.partial(begin_stop, kernel, cell, "timeout"))

    async def _finished(self, cell: Cell) -> CodeExecutionResult:
        if cell.died and self.state == "running":
            cell.goes_on_from = await self._restored(cell)
        if not cell.silent and not cell.counted:
            if not cell.not_undoable and not cell.died and (why := await self._observer.after_cell(self.past.before)):
                cell.not_undoable = why
            cell.says_so = cell.not_undoable not in ("", self._told)
            self._told = cell.not_undoable
        result = await cell.finished(self._images_dir)
        if _log.isEnabledFor(logging.INFO):
            _log.info(
                *("%s: cell ended: %s in %d ms, recovery %s", self._name, result.status, result.duration_ms, result.recovery),
                extra={"cellblock.session": self._trace.name, "cellblock.cell": cell.tag or str(result.execution_count or "")},
            )
        if not cell.silent and not cell.counted:
            gone = cell.goes_on_from is not None
            kept = self._kept.keep(result)
            code, count = cell.code[:_HISTORY_CODE], result.execution_count
            entry = HistoryEntry(code, result.status, count, abandoned=gone, kept=kept, tag=cell.tag, after=self.past.after)
            self.past.add(entry, died=cell.died, not_undoable=cell.not_undoable)
            for watcher in self.watchers:
                watcher.cell_ended(cell.code, result)
        if self.state == "running":
            # Not awaited: the caller waits for this result, not for the next kernel.
            self._kernels.replace_dead()
        if cell.failure is not None:
            raise cell.failure
        return result

    async def _restored(self, cell: Cell) -> Restored | None:
        """Return the state that the session restores after its kernel died with a cell; None for a fresh kernel."""
        dead = self._kernels.current
        if dead is None or not self._observer.can_recover(dead):
            return None
        try:
            kernel = await self._kernels.live()
        except CellblockError:  # the dead cell's result is known and does not depend on this
            return self._observer.awaited(dead)  # the next cell tries again, and raises the error
        for line in kernel.output.take_lacks():
            cell.note(line)
        return kernel.restored

    # -- questions -----------------------------------------------------------------------------------------------------

    async def ask(self, question: Question) -> Answer:
        """Ask the kernel a question in its turn."""
        self.check()
        async with self._turn:
            try:
                await self._observer.turn_begins()
                kernel = await self._live_kernel()
                self._questioned = asyncio.get_running_loop().create_future()
                return await answer_to(kernel, question, self._questioned)
            finally:
                self._questioned = None
                self._observer.turn_left()

    def take_changed(self) -> Changed | None:
        """Return the variable changes that the last cells reported (`Kernel.take_changed`)."""
        self.check()
        kernel = self._kernels.current
        return None if kernel is None or kernel.death is not None else kernel.take_changed()

    # -- stopping ------------------------------------------------------------------------------------------------------

    async def stop(self, afterwards: str = "") -> bool:
        """Stop the running cell. Return whether there was one.

        Args:
            afterwards: A sentence for the cell's result about the session's next step; empty if it just continues.
        """
        cell = self._begin_stop(afterwards)
        if cell is None:
            return False
        await cell.ended.wait()
        return True

    def _begin_stop(self, afterwards: str) -> Cell | None:
        """Start to stop the running cell, and return it."""
        cell, kernel = self.current, self._kernels.current
        if cell is None or kernel is None or cell.ended.is_set():
            return None
        cell.afterwards = afterwards
        begin_stop(kernel, cell, "interrupted")
        return cell

    def time_out(self, cell: Cell) -> None:
        """Start to stop a cell that exceeded its time limit."""
        if (kernel := self._kernels.current) is not None and cell is self.current:
            begin_stop(kernel, cell, "timeout")

    async def reset(self) -> None:
        """Stop the running cell and continue with a fresh kernel."""
        async with self.turn(stop="The session was restarted: variables and imports are lost."):
            await self._kernels.renew()

    async def close(self) -> None:
        """Stop the running cell, and end the kernel. Idempotent."""
        cell, kernel = self.current, self._kernels.current
        if cell is not None and kernel is not None and not cell.ended.is_set():
            cell.afterwards = "The session was ended."
            await kill(kernel, cell, "interrupted")
        await self._kernels.close()


def _keep_text(kernel: Kernel | None, name: StreamName | None, text: str | None) -> None:
    """Save the output of background work for the kernel's next cell."""
    if kernel is not None and name is not None and text:
        kernel.output.insert(name, text.encode("utf-8", "replace"))


async def _drop_events(cell: Cell) -> None:
    while await cell.events.next() is not None:
        pass


def _no_more(cell: Cell, running: asyncio.Task[CodeExecutionResult]) -> None:
    """Signal the end of events to the reader of a cell."""
    cell.events.end()
    if not running.cancelled():
        running.exception()  # mark as retrieved: the reader may have left


class Deadline:
    """A timer that calls a function at a deadline, unless cancelled."""

    def __init__(self, seconds: float, uncounted_seconds: Callable[[], float], act: Callable[[], None]) -> None:
        """Start the timer.

        Args:
            seconds: Counted seconds until the deadline.
            uncounted_seconds: Returns the total seconds that do not count; never decreases.
            act: Called at the deadline.
        """
        self._loop = asyncio.get_running_loop()
        self._uncounted_seconds = uncounted_seconds
        self._act = act
        self._end = self._loop.time() + seconds - uncounted_seconds()
        self._timer = self._loop.call_later(seconds, self._due)

    def cancel(self) -> None:
        """Cancel the timer. Has no effect after the deadline."""
        self._timer.cancel()

    def _due(self) -> None:
        remaining = self._end + self._uncounted_seconds() - self._loop.time()
        if remaining <= 0:
            self._act()
        else:
            self._timer = self._loop.call_later(max(remaining, _STEP), self._due)


class KeptResults:
    """The last results of a session."""

    def __init__(self, limit: int) -> None:
        """Start without results.

        Args:
            limit: Memory limit of all results, in bytes.
        """
        self._room = limit
        self._kept: deque[tuple[KeptResult, int]] = deque()

    def keep(self, result: CodeExecutionResult) -> KeptResult:
        """Store a result, and drop the oldest ones to make room."""
        kept, size = KeptResult(result), _size(result)
        self._kept.append((kept, size))
        self._room -= size
        while self._room < 0:
            oldest, size = self._kept.popleft()
            oldest.result = None
            self._room += size
        return kept


def _size(result: CodeExecutionResult) -> int:
    size = _OVERHEAD + sum(map(sys.getsizeof, (result.text, result.output, result.stderr)))
    for item in result.outputs:
        size += _OVERHEAD + sum(map(sys.getsizeof, (item.text, *item.data.values())))
    return size
