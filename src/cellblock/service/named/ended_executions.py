"""Ended executions, read from the journal, and outcomes for executions of a killed process."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from cellblock.errors import CellblockError, NotRunError, OutcomeUnknownError
from cellblock.model import CodeExecutionResult
from cellblock.model.sessions import ExecutionEvent, ExecutionRecord, outcome_of
from cellblock.service.store.journal import Journal
from cellblock.wire.packed import pack

if TYPE_CHECKING:
    from cellblock.host import Session


class EndedExecution:
    """An ended execution, with the interface of `Execution`.

    Attributes:
        record: The public record.
        ended: True.
        said: Empty: the output is in the result.
        packed: None: the result is read on request.
    """

    packed = None
    ended = True
    said = ""

    def __init__(self, record: ExecutionRecord, journal: Journal) -> None:
        self.record = record
        self._journal = journal

    @property
    def code(self) -> str:
        """The code, or the start of long code."""
        return self._journal.code(self.record.id)

    async def wait(self) -> CodeExecutionResult:
        """Return the result.

        Raises:
            CellblockError: The execution failed; `OutcomeUnknownError` if it is unknown how far it ran.
        """
        return outcome_of(await self._journal.last_event(self.record.id) or self._forgotten, self.record.id)

    @property
    def _forgotten(self) -> ExecutionEvent:
        """The last event of an execution if only its key is still known."""
        lost = f"execution {self.record.id} ran, but its result is no longer stored; it does not run again"
        return ExecutionEvent(1, "failed", {"error": "OutcomeUnknownError", "message": lost, "ran": "yes"})

    async def follow(self, after: int = 0) -> AsyncGenerator[ExecutionEvent, None]:
        """Yield events after a number, as `Execution.follow` does."""
        known = after
        async for event in self._journal.events(self.record.id, after):
            known = event.seq
            yield event
        if not known:
            yield self._forgotten

    async def cancel(self, session: Session | None) -> bool:
        """Return False: the execution has ended."""
        return False


def close_unfinished(journal: Journal, go_on: Set[str] = frozenset()) -> None:
    """Record an outcome for every unfinished execution of the last process. Nothing runs again.

    Args:
        journal: The journal.
        go_on: The ids of executions that continue, or may continue later.
    """
    for record in journal.unfinished():
        if record.id not in go_on:
            close_one(journal, record, begun=record.state == "running")


def close_one(journal: Journal, record: ExecutionRecord, *, begun: bool) -> None:
    """Record an outcome for one unfinished execution of the last process.

    Args:
        journal: The journal.
        record: The execution.
        begun: Whether the code may have run; then the outcome is unknown.
    """
    error, ran = outcome_left(record, begun=begun)
    ended = replace(record, state="unknown" if begun else "done", begun=record.begun if begun else None, ended=time.time())
    if not begun:
        journal.free_key(record.id)
    packed = pack({"error": type(error).__name__, "message": str(error), "ran": ran})
    journal.event(record.id, journal.progress(record.id)[0] + 1, "failed", packed)
    journal.end(ended, len(packed))


def outcome_left(record: ExecutionRecord, *, begun: bool) -> tuple[CellblockError, str]:
    """Return the outcome of an execution that cannot be continued, and whether it ran: ``no`` or ``unknown``."""
    if begun:
        why = f"the daemon was killed while execution {record.id} ran: it may have run in part, and it does not run again"
        return OutcomeUnknownError(why), "unknown"
    return NotRunError(f"the daemon was killed before execution {record.id} began to run: submit it again"), "no"
