"""Executions of code in named sessions, which continue without their clients."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cellblock.common.turns import turns
from cellblock.errors import CellblockError, NotRunError, StateError
from cellblock.host.kernels.cell import Cleared, Event, Notice
from cellblock.model import CodeExecutionChunk, CodeExecutionResult, OutputItem, Recovery
from cellblock.model.sessions import (
    OWN_KERNEL,
    ExecutionEvent,
    ExecutionRecord,
    ExecutionState,
    Language,
    PendingApproval,
)
from cellblock.service.named.event_log import EventLog, Prepared, shown
from cellblock.service.named.kernel_types import cell
from cellblock.service.named.stdin import Stdin
from cellblock.service.store.journal import Journal, new_id
from cellblock.tools.approvals.request import ApprovalRequest
from cellblock.wire.messages import Comm
from cellblock.wire.packed import Packed, pack

if TYPE_CHECKING:
    from cellblock.host import Session
    from cellblock.service.named.approvals import PendingApprovals

_NOT_BEGUN = "it was cancelled, or its session was ended, before it began to run"
_LARGE = 1024 * 1024
"""Size of a result, in characters and bytes, above which it is packed in a thread."""

_SAID = 2000
"""Characters of the end of the output that are shown while it runs."""


class Execution:
    """An execution that is queued or running, or has just ended.

    Events are written to the journal before readers get them.

    Attributes:
        record: The public record, with the status.
        code: The code.
        digest: A digest that identifies the code.
        result: The result; None before the end, or if the execution `failed`.
        packed: The result in the journal's form (`wire.packed`); None before.
        failed: The error if cellblock could not complete the execution.
        said: The end of the output so far, if the execution is `live`.
        stdin: Asks clients for the lines of `input()`.
        begun: Whether the code was sent, or is being sent, to a kernel.
        task: The task that runs the execution.
    """

    def __init__(
        self,
        session: str,
        session_name: str,
        code: str,
        *,
        language: Language = "python",
        kernel_type: str = OWN_KERNEL,
        timeout: float | None = None,
        key: str = "",
        live: bool = False,
        stdin: bool = False,
        silent: bool = False,
        parent: str = "",
    ) -> None:
        """Set up an execution that is not in the journal yet.

        Args:
            session: The session's id.
            session_name: The session's name.
            code: The code.
            language: ``bash`` runs the code by ``%%bash``.
            kernel_type: The session's kernel type.
            timeout: Limit in seconds; None for no limit.
            key: The idempotency key of the submission.
            live: Whether output becomes events.
            stdin: Whether `input()` is answered.
            silent: Whether the execution leaves no trace in the session.
            parent: The id of the requesting Jupyter message, if any.
        """
        self.record = ExecutionRecord(new_id(session), session, submitted=time.time(), key=key)
        self.code = cell(code, language, kernel_type)
        self.result: CodeExecutionResult | None = None
        self.packed: Packed | None = None
        self.failed: CellblockError | None = None
        self.said = ""
        self._session_name = session_name
        self._timeout = timeout
        self._live, self._silent, self._parent = live, silent, parent
        self._asks = stdin
        self.stdin = Stdin(lambda question: self.log.add("input", question))
        self._journal: Journal | None = None
        self._log: EventLog | None = None
        self._approvals: PendingApprovals | None = None
        self._lost: Callable[[], Recovery | None] | None = None
        self._noting: asyncio.Task[None] | None = None
        self._position = ""
        self.begun = False
        self._accepting: set[asyncio.Task[None]] = set()
        self.task: asyncio.Task[None] | None = None

    @classmethod
    def left(cls, record: ExecutionRecord, session_name: str, journal: Journal) -> Execution:
        """Create an execution that was running when the previous process was killed, for `go_on`."""
        left = cls(record.session, session_name, journal.code(record.id), live=True)
        left.record = record
        left.begun = True
        left._enter(journal)
        left.log.go_on()
        return left

    @property
    def digest(self) -> bytes:
        """A digest that identifies its code."""
        return hashlib.sha256(self.code.encode("utf-8", "surrogatepass")).digest()

    @property
    def ended(self) -> bool:
        """Whether the execution has ended, or will never run."""
        return self.record.state in ("done", "unknown")

    def submit(self, journal: Journal, position: str = "") -> bool:
        """Add the execution to the journal, which is written when this returns.

        Args:
            journal: The journal.
            position: The position where the execution is about to begin (`Session.position`); empty if it is queued.

        Returns:
            Whether it was added; False if its key was used before.

        Raises:
            StoreError: The journal cannot be written; the execution must not run.
        """
        if position:
            self._position = position
            self.record = replace(self.record, state="running", begun=self.record.submitted)
        if not journal.add(self.record, self.digest, self.code, position):
            return False
        self._enter(journal)
        return True

    def _begin(self, session: Session, note_begun: Callable[[str, str], asyncio.Task[None] | None], position: str) -> None:
        """Record whether the code is about to be sent to a kernel, so that the next process knows whether it may have run."""
        assert self._journal is not None
        if not position:
            self.begun = False  # even if that cannot be recorded
        if position != self._position:
            state: ExecutionState = "running" if position else "queued"
            record = replace(self.record, state=state, begun=time.time() if position else None)
            self._journal.begin(record, position)
            self.record, self._position = record, position
        if position:
            self.begun = True
            self._noting = self._noting or note_begun(self.record.id, self.code)
            self.log.add("begun", {"execution": self.record.id, "execution_count": session.next_count})

    def _enter(self, journal: Journal) -> None:
        self._journal, self._log = journal, EventLog(journal, self.record.id)

    @property
    def log(self) -> EventLog:
        """The event log; available after `submit`."""
        assert self._log is not None
        return self._log

    def start(
        self,
        session: Callable[[], Awaitable[Session]],
        turn: asyncio.Lock,
        approvals: PendingApprovals | None,
        *,
        lost: Callable[[], Recovery | None],
        note_begun: Callable[[str, str], asyncio.Task[None] | None],
    ) -> asyncio.Task[None]:
        """Run the execution when its turn comes; call `submit` first.

        Args:
            session: Returns the session, and starts it if needed.
            turn: The lock that the session's running execution holds.
            approvals: The store of approval requests; None to allow requests at once.
            lost: Returns what the session continues from if its kernel was lost and no result has reported that; else None.
            note_begun: Starts to record that the cell has begun, if that must survive a power failure. The result waits for
                the record.
        """
        self._approvals, self._lost = approvals, lost
        self.task = asyncio.create_task(self._run_in_turn(session, turn, note_begun))
        return self.task

    def go_on(self, session: Session, turn: asyncio.Lock, approvals: PendingApprovals | None) -> asyncio.Task[None]:
        """Continue the execution in an adopted session, after the last event in the journal.

        For the arguments, see `start`.
        """

        async def run() -> None:
            try:
                async with turn:
                    if not self.log.count:  # the previous process was killed before it could record that
                        self.log.add("begun", {"execution": self.record.id, "execution_count": session.next_count})
                    await self._take_all(session.cells.resume(self.log.given))
            except CellblockError as error:
                self.fail(error, "unknown")
            finally:
                if not self.ended:
                    self.fail(StateError("its session was ended while it ran"), "yes")

        self._approvals = approvals
        self.task = asyncio.create_task(run())
        return self.task

    async def _run_in_turn(
        self,
        session: Callable[[], Awaitable[Session]],
        turn: asyncio.Lock,
        note_begun: Callable[[str, str], asyncio.Task[None] | None],
    ) -> None:
        try:
            async with turn:
                await self._run(await session(), note_begun)
        except CellblockError as error:
            if self.begun:
                self.fail(error, "unknown")
            else:  # a closed session raises StateError
                assert self._journal is not None
                self._journal.free_key(self.record.id)
                self.fail(NotRunError(_NOT_BEGUN) if isinstance(error, StateError) else error, "no")
        except asyncio.CancelledError:
            if self.begun:
                self.fail(StateError("its session was ended while it ran"), "yes")
            else:
                self.fail(NotRunError(_NOT_BEGUN), "no")
            raise
        finally:
            if not self.ended:
                self.fail(CellblockError("cellblock failed; see the daemon's log"), "unknown")

    async def _run(self, session: Session, note_begun: Callable[[str, str], asyncio.Task[None] | None]) -> None:
        options: dict[str, Any] = {
            "timeout": self._timeout,
            "silent": self._silent,
            "parent": self._parent,
            "on_input": self.stdin.ask if self._asks else None,
            "tag": self.record.id,
            "on_begin": functools.partial(self._begin, session, note_begun),
        }
        assert self._journal is not None
        await self._journal.writer.caught_up()
        if self._live:
            await self._take_all(session.stream(self.code, rich=True, **options))
        else:
            await self._end(await session.execute(self.code, on_notice=self._decide, **options))

    async def _take_all(self, events: AsyncGenerator[Event | CodeExecutionResult, None]) -> None:
        """Consume events one by one, each written to the journal before the next, so that the next process continues there."""
        assert self._journal is not None
        async with aclosing(events):
            async for event in events:
                if isinstance(event, CodeExecutionResult):
                    await self._end(event)
                    continue
                if isinstance(event, Notice):
                    self._decide(event.about)
                else:
                    await self._add(event)
                self._journal.writer.make_safe()
                await self._journal.writer.caught_up()
                await turns().give_way()  # thousands can be queued, and reading them never blocks

    async def _add(self, event: CodeExecutionChunk | OutputItem | Comm | Cleared) -> None:
        kind, data = shown(event)
        if isinstance(event, CodeExecutionChunk):
            self.said = (self.said + event.text)[-_SAID:]
        prepared = await self.log.prepare(data)
        self.log.given += 1  # only now: events added meanwhile must not claim that the journal contains this one
        self.log.add(kind, data, prepared)

    def _decide(self, request: object) -> None:
        assert isinstance(request, ApprovalRequest)
        if self._approvals is None:
            accepting = asyncio.create_task(request.accept())
            self._accepting.add(accepting)
            accepting.add_done_callback(self._accepting.discard)
            return
        pending = PendingApproval(
            id=request.id,
            session=self.record.session,
            session_name=self._session_name,
            execution=self.record.id,
            kind=request.kind,
            server=request.server_name,
            tool=request.tool_name,
            arguments=request.tool_args,
            text=str(request),
            changed=request.changed,
        )
        self.log.add("approval", pending.to_dict())
        self._approvals.add(pending, request, functools.partial(self._decided, request))

    def _decided(self, request: ApprovalRequest, state: str) -> None:
        if not self.ended:  # the result is the last event
            self.log.add("decided", {"id": request.id, "state": state, "reason": request.reason})

    async def _end(self, result: CodeExecutionResult) -> None:
        if self._noting is not None:
            await asyncio.wait([self._noting])
        loss = None if self._lost is None else self._lost()  # only now: a failed execution has no result to report the loss
        result = result if loss is None else replace(result, recovery=loss)
        prepared = await self.log.prepare(result.to_dict(raw=True), large=_size(result) > _LARGE)
        self.result, self.packed = result, prepared.packed
        self.record = replace(self.record, state="done", ended=time.time())
        self._note_end(len(self.packed))
        self.log.end("result", result, prepared)

    def fail(self, error: CellblockError, ran: str) -> None:
        """Record that there is no result; `ran` is ``yes``, ``no`` or ``unknown``."""
        self.failed = error
        begun = self.record.begun if self.begun else None
        self.record = replace(self.record, state="unknown" if ran == "unknown" else "done", begun=begun, ended=time.time())
        data = {"error": type(error).__name__, "message": str(error), "ran": ran}
        prepared = Prepared(pack(data))
        self._note_end(len(prepared.packed))
        self.log.end("failed", data, prepared)

    def _note_end(self, size: int) -> None:
        assert self._journal is not None
        result = None if self._silent else self.result
        told = ("", None) if result is None else (result.status, result.execution_count)
        self._journal.end(self.record, self.log.size + size, *told)

    @property
    def settled(self) -> bool:
        """Whether the execution has ended and readers know."""
        return self.log.settled

    def when_settled(self, function: Callable[[], object]) -> None:
        """Call a function when the execution is `settled`, or at once if it already is."""
        self.log.when_settled(function)

    async def wait(self) -> CodeExecutionResult:
        """Wait for the end, and return the result.

        Raises:
            CellblockError: The execution failed.
        """
        await self.log.settle()
        if self.result is None:
            raise self.failed or CellblockError("it has no result")
        return self.result

    def follow(self, after: int = 0) -> AsyncGenerator[ExecutionEvent, None]:
        """Yield events as they arrive, until the last. If some were dropped, a ``gap`` has their number.

        Args:
            after: The number of the last event that the reader has.
        """
        return self.log.follow(after)

    async def cancel(self, session: Session | None) -> bool:
        """Stop the execution, or remove it from the queue. Return whether it had not ended.

        Args:
            session: The session, if it has a kernel.
        """
        if self.ended or self.task is None:
            return False
        if self.begun:
            if session is None or not await session.interrupt():
                return False
            await asyncio.wait([self.task])
            return True
        self.task.cancel()
        await asyncio.wait([self.task])
        if not self.ended:  # its task had not started
            self.fail(NotRunError("it was cancelled before it began to run"), "no")
        return True


def _size(result: CodeExecutionResult) -> int:
    """Return the approximate size of a result."""
    return len(result.text or "") + sum(len(value) for item in result.outputs for value in item.data.values())
