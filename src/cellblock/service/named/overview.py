"""A view of all sessions that lists the changes since any earlier position."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from cellblock.errors import allowing
from cellblock.model.overview import Change, Refusal, RefusalKind, Sample, SessionActivity
from cellblock.model.plain import as_dict

if TYPE_CHECKING:
    from cellblock.model import CodeExecutionResult
    from cellblock.model.decisions import Decision
    from cellblock.service.named.approvals import PendingApprovals
    from cellblock.service.named.executions import Execution
    from cellblock.service.named.session import NamedSession

_LOOK = 0.2
"""Seconds between two looks while a client watches. What waits for a decision, and what ends, is seen at once."""

_AT_ONCE = 200
"""Sessions in one part of an answer."""

_MAX_GONE = 10_000
_MAX_REFUSALS = 500
_SAMPLE_EVERY = 2.0
_MAX_SAMPLES = 300  # ten minutes
_SAID, _CODE = 300, 200
_MAX_TEXT = 500
_MIB = 1024 * 1024


class _Kept(NamedTuple):
    """An entry of the view, with the number of its last change."""

    number: int
    item: Any


class Overview:
    """The activity of the sessions of one process.

    Each entry carries the number of its last change, so a watcher can ask for changes since any number. Only removed
    entries must be remembered. A watcher whose number is too old starts over.
    """

    def __init__(self, sessions: Mapping[str, NamedSession], approvals: PendingApprovals) -> None:
        self._sessions = sessions
        self._approvals = approvals
        self._era = secrets.token_hex(4)
        self._number = self._told = 0
        self._rows: dict[str, _Kept] = {}
        self._waiting: dict[str, _Kept] = {}
        self._gone: deque[_Kept] = deque(maxlen=_MAX_GONE)
        """Ids of sessions and of what waited."""
        self._refusals: deque[_Kept] = deque(maxlen=_MAX_REFUSALS)
        self._samples: deque[_Kept] = deque(maxlen=_MAX_SAMPLES)
        self._denials: dict[str, object] = {}
        self._cells = self._failures = self._started = 0
        self._start_ms = 0.0
        self._sampled = float("-inf")
        self._changed = asyncio.Event()
        self._wake = asyncio.Event()
        self._watchers = 0
        self._watching: asyncio.Task[None] | None = None
        approvals.on_change = self.look_soon

    # -- what others tell ----------------------------------------------------------------------------------------------

    def look_soon(self) -> None:
        """Update at once if anyone watches, because people wait for this event."""
        self._wake.set()

    def cell_ended(self, named: NamedSession, execution: Execution) -> None:
        """Count an ended cell, and note what it was refused."""
        self._cells += 1
        result = execution.result
        if result is None or not result.ok:
            self._failures += 1
        if result is not None and (found := _refused(result)) is not None:
            self._refuse(named, *found)
        self.look_soon()

    def started(self, seconds: float) -> None:
        """Count a started session."""
        self._started += 1
        self._start_ms = seconds * 1000

    def decided(self, named: NamedSession, decision: Decision) -> None:
        """Note a denied call."""
        if decision.allowed:
            return
        called = decision.kind if decision.kind != "tool" else f"{decision.server}.{decision.tool}"
        what = f"{called} {decision.payload[:_MAX_TEXT].decode('ascii', 'replace')}"
        remedy = (
            "a rule that allows it, in the file of rules= (docs/approvals.md)" if not decision.by.startswith("person") else ""
        )
        self._refuse(named, "call", what, f"{decision.reason or 'denied'} ({decision.by})", remedy)

    def _refuse(self, named: NamedSession, kind: RefusalKind, what: str, why: str, remedy: str = "") -> None:
        self._number += 1
        record = named.record
        texts = (text[:_MAX_TEXT] for text in (what, why, remedy))
        refusal = Refusal(f"{self._era}-{self._number}", time.time(), record.kernel_id, record.name, kind, *texts)
        self._refusals.append(_Kept(self._number, refusal))
        self.look_soon()

    def sample(self) -> None:
        """Take a sample if one is due. Called about once a second while there are sessions."""
        now = time.monotonic()
        if now - self._sampled < _SAMPLE_EVERY:
            return
        self._sampled = now
        sessions = [*self._sessions.values()]
        self._number += 1
        taken = Sample(
            at=time.time(),
            sessions=len(sessions),
            running=sum(named.turn.locked() for named in sessions),
            waiting=sum(max(named.unfinished - 1, 0) for named in sessions),
            memory=sum(named.memory for named in sessions),
            checkpoints=sum(_checkpoints(named) for named in sessions),
            cells=self._cells,
            failures=self._failures,
            started=self._started,
            start_ms=round(self._start_ms, 1),
        )
        self._samples.append(_Kept(self._number, taken))
        self._tell()

    # -- looking -------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._wake.wait()
            self._wake.clear()
            self._look()

    def _look(self) -> None:
        """Update the view from the current state."""
        for number, named in self._sessions.items():
            self._look_at_denials(named)
            self._put(self._rows, number, activity(named))
        self._remove(self._rows, self._sessions)
        waiting = {pending.id: pending for pending in self._approvals.waiting()}
        for number, pending in waiting.items():
            self._put(self._waiting, number, pending)
        self._remove(self._waiting, waiting)
        if self._number != self._told:
            self._tell()

    def _put(self, kept: dict[str, _Kept], key: str, item: object) -> None:
        if (known := kept.get(key)) is None or known.item != item:
            self._number += 1
            kept[key] = _Kept(self._number, item)

    def _remove(self, kept: dict[str, _Kept], there: Mapping[str, object]) -> None:
        for key in [key for key in kept if key not in there]:
            del kept[key]
            self._number += 1
            self._gone.append(_Kept(self._number, (kept is self._rows, key)))
            self._denials.pop(key, None)

    def _look_at_denials(self, named: NamedSession) -> None:
        """Note connections refused since the last update. The last refusal is recognized by identity."""
        denials = named.current.denials if named.current is not None else []
        if not denials or denials[-1] is (last := self._denials.get(named.record.kernel_id)):
            return
        known = next((place + 1 for place, one in enumerate(denials) if one is last), 0)
        self._denials[named.record.kernel_id] = denials[-1]
        for one in denials[known:]:
            where = f"{one.host}:{one.port}" if one.port else one.host
            remedy = allowing(one.rule_needed, shlex.quote(named.record.name)) if one.rule_needed else ""
            self._refuse(named, "host", where, one.reason, remedy)

    def _tell(self) -> None:
        self._told = self._number
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # -- watching ------------------------------------------------------------------------------------------------------

    async def follow(self, after: str = "") -> AsyncGenerator[dict[str, Any], None]:
        """Yield each `Change` as JSON data.

        Args:
            after: The position of the last known change.
        """
        self._watchers += 1
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        try:
            self._look()
            known = self._since(after)
            fresh = known < 0
            while True:
                changed = self._changed
                if fresh or known < self._number:
                    until = self._number
                    for change in self._changes(max(known, 0), fresh=fresh):
                        yield as_dict(change)
                    known, fresh = until, False
                if known == self._number:
                    await changed.wait()
        finally:
            self._watchers -= 1
            if not self._watchers and self._watching is not None:
                self._watching.cancel()
                self._watching = None

    def _since(self, position: str) -> int:
        """Return the number of a position; -1 if the position is too old."""
        era, _, number = position.partition("-")
        if era != self._era or not (number.isascii() and number.isdecimal()) or len(number) > 18:
            return -1
        known = int(number)
        forgotten = self._gone[0].number if len(self._gone) == _MAX_GONE else 0
        return known if forgotten <= known <= self._number else -1

    def _changes(self, after: int, *, fresh: bool) -> list[Change]:
        def new(kept: Any) -> list[Any]:
            return [one.item for one in kept if one.number > after]

        position = f"{self._era}-{self._number}"
        gone = [] if fresh else new(self._gone)
        sessions = new(self._rows.values())
        last = Change(
            position,
            sessions=sessions[-(len(sessions) % _AT_ONCE) :] if len(sessions) % _AT_ONCE else [],
            ended=[key for is_session, key in gone if is_session],
            approvals=new(self._waiting.values()),
            decided=[key for is_session, key in gone if not is_session],
            refusals=new(self._refusals),
            samples=new(self._samples),
            fresh=fresh and len(sessions) < _AT_ONCE,
        )
        # Only the last part advances the position: a watcher that loses the connection earlier requests all parts again.
        earlier = f"{self._era}-{after}" if not fresh else ""
        whole = range(0, len(sessions) - len(sessions) % _AT_ONCE, _AT_ONCE)
        parts = [Change(earlier, sessions=sessions[one : one + _AT_ONCE], fresh=fresh and one == 0) for one in whole]
        return [*parts, last]

    async def close(self) -> None:
        """Stop looking."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
            self._watching = None


def activity(named: NamedSession) -> SessionActivity:
    """Return the current activity of a session."""
    record, current = named.record, named.current
    unfinished = [one for one in named.executions.values() if not one.ended]
    running = next((one for one in unfinished if one.record.state == "running"), None)
    return SessionActivity(
        kernel_id=record.kernel_id,
        name=record.name,
        status=named.status,
        created_at=record.created_at,
        used=round(time.time() - (time.monotonic() - named.used)),
        tags=record.tags,
        workspace=record.workspace,
        isolate=record.isolate,
        kernel_type=record.kernel_type,
        branch_of=record.branch_of,
        branch_at=record.branch_at,
        execution="" if running is None else running.record.id,
        began=None if running is None else running.record.begun,
        code=named.last_line if running is None else running.code.strip().partition("\n")[0][:_CODE],
        said="" if running is None else running.said[-_SAID:],
        queued=max(len(unfinished) - 1, 0),
        cells=0 if current is None else max(current.next_count - 1, 0),
        checkpoints=_checkpoints(named),
        memory=named.memory // _MIB * _MIB,
    )


def _checkpoints(named: NamedSession) -> int:
    return 0 if named.current is None else len(named.current.checkpoints())


def _refused(result: CodeExecutionResult) -> tuple[RefusalKind, str, str, str] | None:
    """Return what the cell was refused, according to its result; None if nothing."""
    name, said = ("", "") if result.error is None else (result.error.ename, result.error.evalue)
    if result.status == "timeout":
        return "limit", f"time: {result.duration_ms / 1000:.1f} s", "the cell exceeded its timeout", "timeout="
    if name == "MemoryError" or (name == "KernelDied" and "memory" in said):
        return "limit", "memory", said or "there was no memory left", "memory= (on the command line: --memory)"
    if name == "PermissionError" or (name == "OSError" and "Read-only file system" in said):
        return (
            "file",
            said,
            "the sandbox denies access",
            "write= or read= (on the command line: --write, --read)",
        )
    return None
