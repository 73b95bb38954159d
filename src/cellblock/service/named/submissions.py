"""Submissions to named sessions: queues, runs, interrupts and finds executions."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from cellblock.errors import BusyError, CellblockError, InvalidInputError, NotFoundError
from cellblock.model.sessions import ExecutionRecord
from cellblock.service.named.approvals import PendingApprovals
from cellblock.service.named.ended_executions import EndedExecution
from cellblock.service.named.executions import Execution
from cellblock.service.named.limits import NamedLimits
from cellblock.service.named.session import NamedSession
from cellblock.service.store.named import NamedStore

if TYPE_CHECKING:
    from cellblock.host import Session

_log = logging.getLogger("cellblock.named")

_MAX_KEY = 200
_MAX_LINE = 200


class Submissions:
    """The executions of all named sessions of one process."""

    def __init__(
        self,
        store: NamedStore,
        limits: NamedLimits,
        approvals: PendingApprovals,
        sessions: Mapping[str, NamedSession],
        live: Callable[[NamedSession], Awaitable[Session]],
        on_end: Callable[[NamedSession, Execution], object],
    ) -> None:
        """Set up, without executions.

        Args:
            store: Stores them.
            limits: Limits the queue.
            approvals: Holds their approval requests.
            sessions: The existing sessions, by id.
            live: Returns the running session, and starts it if needed.
            on_end: Called with each execution that has ended.
        """
        self._store = store
        self._limits = limits
        self._approvals = approvals
        self._sessions = sessions
        self._live = live
        self._on_end = on_end

    def submit(self, named: NamedSession, execution: Execution) -> Execution | EndedExecution:
        """Queue an execution. It is in the journal when this returns.

        Args:
            named: The session.
            execution: The execution. If its key was used before, the earlier execution is returned instead.

        Raises:
            ConflictError: The key was used with other code.
            BusyError: The queue is full.
            StoreError: It cannot be added to the journal, and was not run.
        """
        key = execution.record.key
        if len(key) > _MAX_KEY or not key.isprintable():
            raise InvalidInputError(f"a key has at most {_MAX_KEY} characters, all printable, not {key[:_MAX_KEY]!r}")
        # Nearly all keys are new, so the earlier execution of a key is looked up only if the journal refuses the key.
        entered = named.unfinished <= self._limits.waiting and execution.submit(self._store.journal, named.position)
        if not entered:
            if key and (known := self._store.journal.find_key(named.record.kernel_id, key, execution.digest)) is not None:
                return self._of(named, known)
            raise BusyError(
                f"{self._limits.waiting} executions wait in session {named.record.name!r} already, which is the limit "
                f"(max_waiting){self.waits_for(named)}",
                1.0,
            )
        task = execution.start(
            functools.partial(self._prepared, named),
            named.turn,
            self._asked(named),
            lost=named.take_loss,
            note_begun=named.note_begun,
        )
        self._keep(named, execution, task)
        return execution

    def waits_for(self, named: NamedSession) -> str:
        """Return what the running code of a session waits for, to append to a message; empty if it does not wait."""
        if self._approvals.waiting(named.record.kernel_id):
            return "; its code waits for a decision ('cellblock approvals pending' lists it)"
        if any(one.stdin.asks for one in named.executions.values()):
            return "; its code waits for an answer to input()"
        return ""

    async def _prepared(self, named: NamedSession) -> Session:
        session = await self._live(named)
        await named.prepare(session)
        return session

    def go_on(self, named: NamedSession, execution: Execution, session: Session) -> None:
        """Continue an execution of an adopted session."""
        self._keep(named, execution, execution.go_on(session, named.turn, self._asked(named)))

    def _asked(self, named: NamedSession) -> PendingApprovals | None:
        """Return the store of approval requests; None if the session allows requests at once."""
        return None if named.approve == "auto" else self._approvals

    def _keep(self, named: NamedSession, execution: Execution, task: asyncio.Task[None]) -> None:
        named.executions[execution.record.id] = execution
        named.last_line = execution.code.strip().partition("\n")[0][:_MAX_LINE]
        task.add_done_callback(functools.partial(self._over, named, execution))

    def _over(self, named: NamedSession, execution: Execution, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, CellblockError):
            _log.error("an execution failed", exc_info=error)
        named.touch()
        if execution.begun:
            named.ran = max(named.ran, execution.record.id)
            if execution.result is not None:
                named.reported()
            self._on_end(named, execution)
        self._release_when_written(named, execution)

    def _release_when_written(self, named: NamedSession, execution: Execution) -> None:
        """Release an ended execution as soon as it is completely in the journal."""

        def release() -> None:
            if self._store.writer.problem or not execution.settled:
                asyncio.get_running_loop().call_later(1.0, self._release_when_written, named, execution)
            else:
                named.executions.pop(execution.record.id, None)

        self._store.writer.when_written(release)

    async def interrupt(self, named: NamedSession, key: str = "") -> bool:
        """Stop what runs in a session, and wait until it has stopped; return whether something ran.

        Args:
            named: The session.
            key: If given, only the execution with this key is stopped, or removed from the queue.
        """
        found = [
            execution
            for execution in named.executions.values()
            if (execution.record.key == key if key else execution.record.state == "running")
        ]
        return bool(found) and await found[0].cancel(named.current)

    def find(self, number: str) -> tuple[NamedSession | None, Execution | EndedExecution]:
        """Return an execution by its id, and its session if that still exists.

        Raises:
            NotFoundError: It is not known, or is no longer kept.
        """
        for named in self._sessions.values():
            if (found := named.executions.get(number)) is not None:
                return named, found
        record = self._store.journal.find(number)
        if record is None:
            raise NotFoundError(f"there is no execution {number!r}, or it is no longer stored")
        return self._sessions.get(record.session), EndedExecution(record, self._store.journal)

    def find_key(self, named: NamedSession, key: str) -> Execution | EndedExecution:
        """Return the execution that was submitted to a session with a key.

        Raises:
            NotFoundError: None was.
        """
        record = self._store.journal.find_key(named.record.kernel_id, key)
        if record is None:
            raise NotFoundError(f"no execution of session {named.record.name!r} has the key {key!r}")
        return self._of(named, record)

    def _of(self, named: NamedSession, record: ExecutionRecord) -> Execution | EndedExecution:
        return named.executions.get(record.id) or EndedExecution(record, self._store.journal)

    def last(self, named: NamedSession, count: int) -> list[ExecutionRecord]:
        """Return the last executions of a session, newest first."""
        return self._store.journal.last(named.record.kernel_id, count)
