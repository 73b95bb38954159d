"""The journal of executions. Each execution is recorded before it runs, and its events as they happen.

Large events have files next to the database. `Execution` limits each execution; age, number and bytes limit the total.
Trimming removes the oldest executions of the session with the largest share, so no session can displace another's
executions. Idempotency keys stay longer.
"""

from __future__ import annotations

import errno
import heapq
import json
import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from cellblock.errors import ConflictError, ProtocolError
from cellblock.model import HistoryEntry
from cellblock.model.overview import CellRecord
from cellblock.model.sessions import EventKind, ExecutionEvent, ExecutionRecord, mark_of
from cellblock.service.store.event_files import EventFiles
from cellblock.service.store.writer import Writer
from cellblock.wire.packed import unpack

_log = logging.getLogger("cellblock.store")

SCHEMA = """
CREATE TABLE IF NOT EXISTS executions (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    session TEXT NOT NULL,
    key TEXT NOT NULL,
    digest BLOB NOT NULL,
    state TEXT NOT NULL,
    submitted REAL NOT NULL,
    begun REAL,
    ended REAL,
    size INTEGER NOT NULL,
    code TEXT NOT NULL,
    position TEXT NOT NULL DEFAULT '',
    status TEXT NOT NULL DEFAULT '',
    execution_count INTEGER
) STRICT;
CREATE INDEX IF NOT EXISTS executions_by_session ON executions (session);
CREATE UNIQUE INDEX IF NOT EXISTS executions_by_key ON executions (session, key) WHERE key <> '';
CREATE TABLE IF NOT EXISTS keys (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    session TEXT NOT NULL,
    key TEXT NOT NULL,
    digest BLOB NOT NULL,
    state TEXT NOT NULL,
    submitted REAL NOT NULL,
    begun REAL,
    ended REAL
) STRICT;
CREATE INDEX IF NOT EXISTS keys_by_session ON keys (session);
CREATE UNIQUE INDEX IF NOT EXISTS keys_by_key ON keys (session, key);
CREATE TABLE IF NOT EXISTS events (
    execution INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    kind TEXT NOT NULL,
    data BLOB,
    given INTEGER NOT NULL,
    PRIMARY KEY (execution, seq)
) STRICT, WITHOUT ROWID
"""

MAX_INLINE = 64 * 1024
"""Bytes of an event that are kept in the database; a larger one has its own file."""

MAX_CODE = 64 * 1024
"""Characters of code that are kept for display."""

MAX_SHOWN = 10_000
"""Characters of the code of each cell in a list of cells."""

MAX_LISTED = 1000
"""Maximum number of executions of a session to list."""

MAX_EXECUTIONS = 50_000
MAX_BYTES = 256 * 1024 * 1024
MAX_AGE = 30 * 86_400.0
"""Limits for executions that have ended: their number, total bytes, and by default age in seconds."""

MAX_KEYS, MAX_ALL_KEYS = 10_000, 1_000_000
"""Keys of removed executions that are kept, of one session and of all, for `MAX_AGE`."""

_LOOKED_AT = 8
"""Sessions that are looked at to remove something: what runs in the largest ones cannot be removed."""

_TRIM_EVERY, _TRIM = 200, 400  # rows added between two trims, and rows removed by each, in a few milliseconds

_AGE_EVERY = 60.0
"""Seconds between two checks of the age of the oldest ones."""

# Otherwise a duplicate number would block everything else in its transaction, forever. Columns are named everywhere,
# because a later version may have added columns.
_INSERT = (
    "INSERT OR IGNORE INTO executions (n, id, session, key, digest, state, submitted, begun, size, code, position) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_BEGIN = "UPDATE executions SET state = ?, begun = ?, position = ? WHERE n = ?"
_END = "UPDATE executions SET state = ?, begun = ?, ended = ?, size = size + ?, status = ?, execution_count = ? WHERE n = ?"
_FREE = "UPDATE executions SET key = '' WHERE n = ?"
_ADDED = {"position": "TEXT NOT NULL DEFAULT ''", "status": "TEXT NOT NULL DEFAULT ''", "execution_count": "INTEGER"}
"""Columns that files of earlier versions lack."""

_HISTORY = (
    "SELECT code, status, execution_count FROM "
    "(SELECT * FROM executions WHERE session = ? AND n <= ? ORDER BY n DESC LIMIT 2000) WHERE status <> '' LIMIT ?"
)
_LAST_RUN = (
    "SELECT id FROM executions WHERE session = ? AND begun IS NOT NULL AND state IN ('done', 'unknown') "
    "ORDER BY n DESC LIMIT 1"
)
_RUN_AFTER = "FROM executions WHERE session = ? AND n > ? AND begun IS NOT NULL AND (? OR state <> 'running')"
_INSERT_PAST = (
    "INSERT OR IGNORE INTO executions (n, id, session, key, digest, state, submitted, begun, ended, size, code, position, "
    "status, execution_count) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_PAST = (
    "SELECT n, id, session, key, digest, state, submitted, begun, ended, size, substr(code, 1, ?), '', status, "
    "execution_count, seq, kind, data FROM executions LEFT JOIN events ON execution = n AND data IS NOT NULL "
    "AND seq = (SELECT max(seq) FROM events WHERE execution = n) "
    "WHERE session = ? AND state IN ('done', 'unknown') ORDER BY n DESC LIMIT ?"
)
_EVENT = "INSERT OR IGNORE INTO events (execution, seq, kind, data, given) VALUES (?, ?, ?, ?, ?)"
_SELECT = "SELECT id, session, state, submitted, begun, ended, key FROM executions"
_CELL = "SELECT id, session, state, submitted, begun, ended, substr(code, 1, ?), status, execution_count FROM executions"
_MATCHING = "SELECT id, session, submitted{} FROM executions WHERE n < ? ORDER BY n DESC LIMIT ?"
_CONTAINS = f", substr(code, 1, {MAX_SHOWN}) LIKE ? ESCAPE '\\'"
_BY_KEY = (
    "SELECT digest, id, session, state, submitted, begun, ended, key FROM executions "
    "WHERE session = ?1 AND key = ?2 AND key <> '' UNION ALL "
    "SELECT digest, id, session, state, submitted, begun, ended, key FROM keys WHERE session = ?1 AND key = ?2"
)
_OLDEST = (
    "SELECT n, session, size, key <> '', ended, coalesce((SELECT min(seq) FROM events WHERE execution = n), 0), "
    "coalesce((SELECT max(seq) FROM events WHERE execution = n), 0) "
    "FROM executions WHERE state IN ('done', 'unknown') {} ORDER BY n LIMIT ?"
)
_EVENTS = "SELECT seq, kind, data FROM events WHERE execution = ? AND seq > ? ORDER BY seq LIMIT ?"
_LARGE = "SELECT execution, seq FROM events WHERE execution IN (SELECT value FROM json_each(?)) AND seq <= ? AND data IS NULL"
_DROP_EVENTS = "DELETE FROM events WHERE execution IN (SELECT value FROM json_each(?)) AND seq <= ?"
_DROP = "DELETE FROM executions WHERE n IN (SELECT value FROM json_each(?))"
_KEEP_KEYS = (
    "INSERT OR IGNORE INTO keys (n, id, session, key, digest, state, submitted, begun, ended) "
    "SELECT n, id, session, key, digest, state, submitted, begun, ended FROM executions "
    "WHERE n IN (SELECT value FROM json_each(?)) AND key <> ''"
)
_OLD_KEYS = "SELECT n, session FROM keys WHERE n < ? ORDER BY n LIMIT ?"
_OLD_KEYS_OF = "SELECT n, session FROM keys WHERE session = ? ORDER BY n LIMIT ?"
_DROP_KEYS = "DELETE FROM keys WHERE n IN (SELECT value FROM json_each(?))"
_PAGE = 50
_ID = re.compile("[0-7][0-9a-f]{31}")


class _Numbers:
    """A generator of the first halves of ids: timestamps that always increase, even if the clock is set back."""

    def __init__(self) -> None:
        self._last = 0

    def begin_after(self, number: int) -> None:
        self._last = max(self._last, min(number, _LARGEST - 2**48))  # a file could contain the largest number

    def next(self) -> int:
        self._last = max(self._last + 1, time.time_ns())
        return self._last


_LARGEST = 2**63 - 1
_numbers = _Numbers()


def new_id(session: str = "") -> str:
    """Return an id for an execution. Ids sort by submission time, and end like the session's ids.

    In a cluster, an id therefore names the node of its session.
    """
    mark = mark_of(session)
    return f"{_numbers.next():016x}{secrets.token_hex(8 - len(mark) // 2)}{mark}"


class _Shares:
    """Each session's share of the journal."""

    def __init__(self, rows: list[tuple[str, int, int]]) -> None:
        self._of = {session: [count, size] for session, count, size in rows}
        self.count, self.bytes = (sum(share[which] for share in self._of.values()) for which in (0, 1))

    def add(self, session: str, count: int, size: int) -> None:
        share = self._of.setdefault(session, [0, 0])
        share[0] += count
        share[1] += size
        self.count += count
        self.bytes += size
        if share[0] <= 0:
            del self._of[session]

    def largest(self) -> list[str]:
        """Return the sessions whose oldest executions should go first; empty if the totals are within the limits."""
        which = 1 if self.bytes > MAX_BYTES else 0
        if not which and self.count <= MAX_EXECUTIONS:
            return []
        return heapq.nlargest(_LOOKED_AT, self._of, lambda session: self._of[session][which])


class Journal:
    """All executions, in one file and a directory next to it.

    Attributes:
        writer: Writes the file.
    """

    def __init__(self, writer: Writer, directory: Path | None, max_age: float) -> None:
        """Use a file that has the tables of `SCHEMA`.

        Args:
            writer: Writes the file.
            directory: The directory of large events; None to keep them in the file.
            max_age: Seconds for which ended executions are kept.
        """
        self.writer = writer
        self._max_age = max_age
        self._files = None if directory is None else EventFiles(directory)
        self._shares = _Shares(writer.read("SELECT session, count(*), sum(size) FROM executions GROUP BY session"))
        self._old_keys = Counter(dict(writer.read("SELECT session, count(*) FROM keys GROUP BY session")))
        ((last,),) = writer.read("SELECT coalesce(max(n), 0) FROM executions")
        _numbers.begin_after(last)
        self._until_trim = 0
        self._look_at_age = 0.0
        self._pending_keys: set[tuple[str, str]] = set()
        known = {name for (name,) in writer.read("SELECT name FROM pragma_table_info('executions')")}
        for name in _ADDED.keys() - known:
            writer.write((f"ALTER TABLE executions ADD COLUMN {name} {_ADDED[name]}", ()))

    # -- writing -------------------------------------------------------------------------------------------------------

    def add(self, record: ExecutionRecord, digest: bytes, code: str, position: str = "") -> bool:
        """Add an execution. It is written when this returns.

        Args:
            record: The record.
            digest: A digest that identifies the code.
            code: The code.
            position: The position where the execution is about to begin (`Session.position`), if it is.

        Returns:
            Whether it was added. False if the session already has an execution with this key (`find_key`).

        Raises:
            StoreError: The journal cannot be written.
        """
        if self._until_trim <= 0:
            self.trim()
        if record.key and self._is_used(record.session, record.key):
            return False
        kept = code[:MAX_CODE].encode("utf-8", "replace").decode()
        self.writer.keep(_INSERT, (
            _number(record.id), record.id, record.session, record.key, digest, record.state, record.submitted, record.begun,
            len(kept), kept, position,
        ), len(kept))  # fmt: skip
        if record.key:
            if not self._pending_keys:
                self.writer.when_written(self._pending_keys.clear)
            self._pending_keys.add((record.session, record.key))
        self._shares.add(record.session, 1, len(kept))
        self._until_trim -= 1
        return True

    def _is_used(self, session: str, key: str) -> bool:
        """Return whether an execution was submitted to a session with this key. A new key costs no transaction."""
        may_be = (session, key) in self._pending_keys or self._by_key(session, key, pending=False)
        return bool(may_be and self._by_key(session, key))  # a pending change may have freed it

    def _by_key(self, session: str, key: str, *, pending: bool = True) -> list[tuple[Any, ...]]:
        return self.writer.read(_BY_KEY, (session, key), pending=pending)

    def begin(self, record: ExecutionRecord, position: str) -> None:
        """Record that an execution is about to run, or has to wait. It is written when this returns.

        Args:
            record: The record.
            position: The position where the execution is about to begin (`Session.position`); empty if it has to wait.

        Raises:
            StoreError: The journal cannot be written.
        """
        self.writer.keep(_BEGIN, (record.state, record.begun, position, _number(record.id)))

    async def write_ahead(self, packed: bytes) -> Path | None:
        """Write the data of a future event to a file, in a thread, if it is very large.

        Args:
            packed: The event's data, packed.

        Returns:
            The file, for `event`; None if `event` has to write the data.
        """
        return None if self._files is None else await self._files.write_ahead(packed)

    def event(
        self, execution: str, seq: int, kind: EventKind, packed: bytes, given: int = 0, ahead: Path | None = None
    ) -> None:
        """Add an event with a delayed write.

        Args:
            execution: The id of the execution.
            seq: The event's number.
            kind: The event's kind.
            packed: The event's data, packed (`wire.packed`).
            given: How many events the session has produced, up to this one.
            ahead: The result of `write_ahead` for this event.
        """
        if self._until_trim <= 0:
            self.trim()
        self._until_trim -= 1
        number = _number(execution)
        large = self._files is not None and len(packed) > MAX_INLINE and self._files.put(number, seq, packed, ahead)
        data = None if large else packed
        self.writer.later(_EVENT, (number, seq, kind, data, given), 0 if data is None else len(data))

    def end(self, record: ExecutionRecord, size: int, status: str = "", execution_count: int | None = None) -> None:
        """Record the end of an execution with a delayed write.

        Args:
            record: The record.
            size: Bytes of its events.
            status: The status of its result, if it belongs to the session's history.
            execution_count: Its number in that history, if it has one.
        """
        self._shares.add(record.session, 0, size)
        values = (record.state, record.begun, record.ended, size, status, execution_count, _number(record.id))
        self.writer.later(_END, values)

    def free_key(self, execution: str) -> None:
        """Free the key of an execution that never ran, so that a repeated submission runs."""
        self.writer.later(_FREE, (_number(execution),))

    def drop(self, execution: str, until: int) -> None:
        """Delete the events of an execution up to a number."""
        self._drop_events([_number(execution)], until)

    def trim(self) -> None:
        """Delete executions beyond the limits, a few at a time. Their keys are kept for longer."""
        self._until_trim = _TRIM_EVERY
        now = time.monotonic()
        room = _TRIM
        if now >= self._look_at_age:
            self._look_at_age = now + _AGE_EVERY
            now = time.time()
            self._drop_keys(self.writer.read(_OLD_KEYS, (int((now - MAX_AGE) * 1e9), _TRIM)))
            room = self._remove(self.writer.read(_OLDEST.format(""), (room // 2,)), room, now - self._max_age)
            if room < _TRIM:
                self._look_at_age = now  # there may be more
        for session in self._shares.largest():  # otherwise, reading the oldest would flush pending changes too early
            if room < _TRIM:
                return
            room = self._remove(self.writer.read(_OLDEST.format("AND session = ?"), (session, room // 2)), room, None)

    def _remove(self, rows: list[tuple[Any, ...]], room: int, before: float | None) -> int:
        """Delete executions, oldest first.

        Args:
            rows: The oldest executions (`_OLDEST`).
            room: How many rows may be deleted.
            before: Delete executions that ended before this time; None: as many as exceed the limits.

        Returns:
            How many more rows may be deleted.
        """
        whole: list[int] = []
        keys: Counter[str] = Counter()
        for number, session, size, has_key, ended, first, last in rows:
            if room <= 0 or (ended > before if before is not None else not self._shares.largest()):
                break
            if last > first + room:
                self._drop_events([number], first + room)
                room = 0
                break
            whole.append(number)
            keys[session] += has_key
            self._shares.add(session, -1, -size)
            room -= last - first + 2
        if whole:
            self._drop_events(whole, _LARGEST)
            self.writer.later(_KEEP_KEYS, (json.dumps(whole),))
            self.writer.later(_DROP, (json.dumps(whole),))
            self._trim_keys(keys)
        return room

    def _trim_keys(self, added: Counter[str]) -> None:
        """Delete the oldest keys beyond the limits, after new keys were added."""
        self._old_keys += added
        for session in added:
            if (excess := self._old_keys[session] - MAX_KEYS) > 0:
                self._drop_keys(self.writer.read(_OLD_KEYS_OF, (session, excess)))
        while (excess := self._old_keys.total() - MAX_ALL_KEYS) > 0:
            ((session, count),) = self._old_keys.most_common(1)
            rows = self.writer.read(_OLD_KEYS_OF, (session, min(excess, max(count // 2, 1))))
            if not rows:  # the new keys could not be written
                del self._old_keys[session]
            self._drop_keys(rows)

    def _drop_keys(self, rows: list[tuple[Any, ...]]) -> None:
        if not rows:
            return
        self._old_keys -= Counter(session for _, session in rows)
        self.writer.later(_DROP_KEYS, (json.dumps([number for number, _ in rows]),))

    def _drop_events(self, executions: list[int], until: int) -> None:
        """Delete the events of some executions up to a number."""
        among = json.dumps(executions)
        if self._files is not None:
            self._files.remove(self.writer.read(_LARGE, (among, until)))
        self.writer.later(_DROP_EVENTS, (among, until))

    def close(self) -> None:
        """Finish pending work on files. The writer stays open: its owner closes it."""
        if self._files is not None:
            self._files.close()

    # -- reading -------------------------------------------------------------------------------------------------------

    def find(self, execution: str) -> ExecutionRecord | None:
        """Return an execution's record by id."""
        if not is_id(execution):
            return None
        rows = self.writer.read(f"{_SELECT} WHERE n = ? AND id = ?", (_number(execution), execution))
        return ExecutionRecord(*rows[0]) if rows else None

    def find_key(self, session: str, key: str, digest: bytes | None = None) -> ExecutionRecord | None:
        """Return the execution that was submitted to a session with an idempotency key.

        Args:
            session: The session's id.
            key: The key, which is kept longer than the execution's output.
            digest: A digest that identifies the code; None to skip the check.

        Raises:
            ConflictError: The key was used with other code.
        """
        if not (rows := self._by_key(session, key)):
            return None
        if digest is not None and rows[0][0] != digest:
            raise ConflictError(f"the key {key[:100]!r} was used before in this session, with other code: use a new key")
        return ExecutionRecord(*rows[0][1:])

    def last(self, session: str, count: int) -> list[ExecutionRecord]:
        """Return the last executions of a session, newest first, at most `MAX_LISTED`."""
        rows = self.writer.read(f"{_SELECT} WHERE session = ? ORDER BY n DESC LIMIT ?", (session, _listed(count)))
        return [ExecutionRecord(*row) for row in rows]

    def cells(self, session: str, count: int) -> list[CellRecord]:
        """Return the last executions of a session with their code, oldest first."""
        rows = self.writer.read(f"{_CELL} WHERE session = ? ORDER BY n DESC LIMIT ?", (MAX_SHOWN, session, _listed(count)))
        return [CellRecord(*row) for row in reversed(rows)]

    def cell(self, execution: str) -> CellRecord | None:
        """Return an execution with its code; None if unknown."""
        if not is_id(execution):
            return None
        rows = self.writer.read(f"{_CELL} WHERE n = ? AND id = ?", (MAX_SHOWN, _number(execution), execution))
        return CellRecord(*rows[0]) if rows else None

    def matching(self, words: Sequence[str], before: str, count: int) -> list[tuple[str, str, float, tuple[bool, ...]]]:
        """Return executions before another one, newest first, and which words their code contains.

        Args:
            words: The words. Case does not matter for letters of English.
            before: The id of the other execution; empty: begin with the newest.
            count: The maximum number of executions.

        Returns:
            For each execution: its id, its session, the time of its submission, and whether it contains each word.
        """
        patterns = ["%" + re.sub(r"([%_\\])", r"\\\1", word) + "%" for word in words]
        query = _MATCHING.format(_CONTAINS * len(patterns))
        rows = self.writer.read(query, (*patterns, _number(before) if before else _LARGEST, count))
        return [(number, session, submitted, tuple(map(bool, has))) for number, session, submitted, *has in rows]

    def last_run(self, session: str) -> str:
        """Return the id of the last execution of a session that ran and ended; empty if none did."""
        rows = self.writer.read(_LAST_RUN, (session,))
        return str(rows[0][0]) if rows else ""

    def run_after(self, session: str, execution: str, most: int, *, running: bool = True) -> tuple[list[str], int]:
        """Return the code of the first executions that ran in a session after another one, and their total number.

        Args:
            session: The session.
            execution: The id of the other execution; empty: all.
            most: The maximum number of executions to return.
            running: Whether a running execution counts.
        """
        given = (session, _number(execution) if execution else 0, running)
        (count,) = self.writer.read(f"SELECT count(*) {_RUN_AFTER}", given)
        return [
            str(code) for (code,) in self.writer.read(f"SELECT code {_RUN_AFTER} ORDER BY n LIMIT ?", (*given, most))
        ], count[0]

    def history(self, session: str, until: str, count: int) -> list[HistoryEntry]:
        """Return the last cells of a session up to an execution, oldest first, with the stored part of their code.

        Args:
            session: The session.
            until: The execution; empty for no cells.
            count: The maximum number of cells.
        """
        if not until:
            return []
        return [HistoryEntry(*row) for row in reversed(self.writer.read(_HISTORY, (session, _number(until), max(count, 0))))]

    def code(self, execution: str) -> str:
        """Return the code of an execution, or its first `MAX_CODE` characters; empty if it is unknown."""
        rows = self.writer.read("SELECT code FROM executions WHERE n = ?", (_number(execution),))
        return str(rows[0][0]) if rows else ""

    def position(self, execution: str) -> str:
        """Return the position where an execution was about to begin (`Session.position`); empty if it waited."""
        rows = self.writer.read("SELECT position FROM executions WHERE n = ?", (_number(execution),))
        return str(rows[0][0]) if rows else ""

    async def events(self, execution: str, after: int = 0) -> AsyncGenerator[ExecutionEvent, None]:
        """Yield the events of an execution after a number. A ``gap`` has the number of missing events."""
        number = _number(execution)
        while True:
            rows = self.writer.read(_EVENTS, (number, after, _PAGE))
            for seq, kind, data in rows:
                if seq > after + 1:
                    yield ExecutionEvent(seq - 1, "gap", {"dropped": seq - 1 - after})
                yield await self._event(number, seq, kind, data)
                after = seq
            if len(rows) < _PAGE:
                return

    async def last_event(self, execution: str) -> ExecutionEvent | None:
        """Return the last event of an execution, or None."""
        number = _number(execution)
        query = "SELECT seq, kind, data FROM events WHERE execution = ? ORDER BY seq DESC LIMIT 1"
        for seq, kind, data in self.writer.read(query, (number,)):
            return await self._event(number, seq, kind, data)
        return None

    def progress(self, execution: str) -> tuple[int, int]:
        """Return the number of an execution's last event, and how many events its session has produced."""
        query = "SELECT seq, given FROM events WHERE execution = ? ORDER BY seq DESC LIMIT 1"
        for seq, given in self.writer.read(query, (_number(execution),)):
            return int(seq), int(given)
        return 0, 0

    def unfinished(self) -> list[ExecutionRecord]:
        """Return the executions that were unfinished when their last process ended, oldest first."""
        return [
            ExecutionRecord(*row) for row in self.writer.read(f"{_SELECT} WHERE state IN ('queued', 'running') ORDER BY n")
        ]

    # -- of sessions that move ---------------------------------------------------------------------------------------------

    def past(self, session: str) -> list[list[Any]]:
        """Return the last ended executions of a session, oldest first, for `enter_past` elsewhere.

        Each has its last event if that is in the database, and the part of its code that is shown.
        """
        rows = self.writer.read(_PAST, (MAX_SHOWN, session, MAX_LISTED))
        return [[*row] for row in reversed(rows)]

    def enter_past(self, rows: list[list[Any]]) -> None:
        """Add the executions of a session that has moved here, so that their keys do not run again."""
        for *row, seq, kind, data in rows:
            size = int(row[9])
            self.writer.later(_INSERT_PAST, tuple(row), size)
            if seq is not None:
                self.writer.later(_EVENT, (row[0], seq, kind, data, 0), len(data))
            self._shares.add(row[2], 1, size)
        self.writer.flush()

    # -- large events -------------------------------------------------------------------------------------------------

    async def _event(self, number: int, seq: int, kind: EventKind, data: bytes | None) -> ExecutionEvent:
        try:
            return ExecutionEvent(seq, kind, await self._read_file(number, seq) if data is None else unpack(data))
        except (OSError, ProtocolError) as error:
            _log.warning("event %d of execution %x is lost: %s", seq, number, error)
            if kind == "result":
                lost = {"error": "OutcomeUnknownError", "message": "it ran, but its result is lost", "ran": "yes"}
                return ExecutionEvent(seq, "failed", lost)
            return ExecutionEvent(seq, "gap", {"dropped": 1})

    async def _read_file(self, number: int, seq: int) -> Any:
        if self._files is None:
            raise FileNotFoundError(errno.ENOENT, "there is no directory for large events")
        return await self._files.read(number, seq)


def _number(execution: str) -> int:
    return int(execution[:16], 16)


def is_id(text: str) -> bool:
    """Return whether a text can be the id of an execution."""
    return _ID.fullmatch(text) is not None


def _listed(wanted: int) -> int:
    """Return the number of executions to list for a request."""
    return min(max(wanted, 0), MAX_LISTED)
