"""The audit trail: every decision about a call, with the exact bytes that were decided.

A decision is recorded before it takes effect: `Approvals.add` returns when its transaction is committed. With WAL and
``synchronous=NORMAL``, the decision survives the death of every process. A power failure can lose the last moments,
together with the effects of the decisions. ``FULL`` would cost a write to the disk, which takes milliseconds, for each
call.

Rows are written in the event loop's thread: a row takes 20 µs there, and 160 µs with a separate thread.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Self

from cellblock.common import config
from cellblock.common.database import Database
from cellblock.errors import StateError, StoreError
from cellblock.model.decisions import Decision

_SCHEMA = """
CREATE TABLE IF NOT EXISTS approvals (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    session TEXT NOT NULL,
    kind TEXT NOT NULL,
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    payload BLOB NOT NULL,
    size INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('allow', 'deny')),
    decided_by TEXT NOT NULL,
    reason TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS approvals_by_session ON approvals (session, id);
CREATE INDEX IF NOT EXISTS approvals_allowed ON approvals (server, tool, kind, id) WHERE outcome = 'allow'
"""

_INSERT = (
    "INSERT INTO approvals (at, session, kind, server, tool, payload, size, sha256, outcome, decided_by, reason) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_SELECT = "SELECT outcome, decided_by, session, kind, server, tool, payload, at, reason FROM approvals"
MAX_PAYLOAD = 64 * 1024
"""Bytes that are kept of a payload; its length and its digest cover all of it."""

MAX_PAYLOADS = 16 * 1024 * 1024
"""Bytes of payloads that are kept for one `Approvals` object, that is, for one session."""

MAX_DENIALS = 100
"""Denials per minute that get a row each; further ones are counted in one row."""

MAX_ROWS = 50_000
"""Rows of one session; older ones of the same session are removed."""

MAX_FILE = 256 * 1024 * 1024
"""Bytes of the file, beyond which the oldest rows of all sessions are removed."""

MAX_AGE = 90 * 86_400.0
"""Seconds that a row is kept."""

_TRIM_EVERY = 256  # rows
_TRIM = 512  # rows at a time, which takes a millisecond
_FILE = "approvals.db"
_TRIM_OLDEST = "DELETE FROM approvals WHERE id IN (SELECT id FROM approvals ORDER BY id LIMIT ?) AND at < ?"
_TRIM_SESSION = (
    "DELETE FROM approvals WHERE id IN (SELECT id FROM approvals WHERE session = ? AND id <= "
    "(SELECT id FROM approvals WHERE session = ? ORDER BY id DESC LIMIT 1 OFFSET ?) ORDER BY id LIMIT ?)"
)

_LOG = logging.getLogger("cellblock.tools")


class Approvals:
    """The decisions of all sessions, in one file. Each recording session has its own object."""

    def __init__(self, directory: Path | None = None) -> None:
        """Open or create the file.

        Args:
            directory: The directory; `config.state_directory` by default.

        Raises:
            StoreError: The directory or the file cannot be used.
        """
        directory = config.state_directory() if directory is None else directory
        self._database = Database(directory, _FILE, _SCHEMA, synchronous="NORMAL")
        self._closed = False
        self._rows = 0
        self._payloads = 0
        self._denials = _Denials()

    async def add(self, decision: Decision) -> None:
        """Record a decision. It is stored when this returns.

        Code can be denied thousands of times a second. For denials beyond `MAX_DENIALS` in a minute, only the number is
        recorded, because they have no effect that would need tracing.

        Args:
            decision: The decision.

        Raises:
            StateError: The trail is closed.
            StoreError: The decision could not be written.
        """
        if (summary := self._denials.summary(decision.at)) is not None:
            await self._insert(summary)
        if not decision.allowed and not self._denials.admits(decision):
            return
        await self._insert(decision)

    async def _insert(self, decision: Decision) -> None:
        if self._closed:
            raise StateError("The approvals are closed; nothing can be recorded.")
        kept = decision.payload[: _payload_limit(self._payloads)]
        try:
            await self._database.write(_INSERT, _row(decision, kept))
        except StoreError as error:
            raise StoreError(f"a decision could not be recorded: {error}") from error
        self._payloads += len(kept)
        self._rows += 1
        if self._rows % _TRIM_EVERY == 1:
            await self._trim(decision.session)

    async def _trim(self, session: str) -> None:
        """Remove rows that are too old or too many, a few at a time. While another process is writing, do it later."""
        try:
            with self._database.reading() as connection:
                pragmas = ("page_count", "freelist_count", "page_size")
                pages, free, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas)
            before = time.time() - MAX_AGE if (pages - free) * size <= MAX_FILE else float("inf")
            await self._database.write(_TRIM_OLDEST, (_TRIM, before), patience=0)
            await self._database.write(_TRIM_SESSION, (session, session, MAX_ROWS, _TRIM), patience=0)
        except StoreError as error:
            _LOG.debug("the record of decisions was not trimmed: %s", error)

    def last(self, count: int = 100, *, session: str | None = None) -> list[Decision]:
        """Return the last decisions, newest first.

        Args:
            count: The maximum number of decisions.
            session: The session; None for all.

        Returns:
            The decisions. A longer payload is cut to its first `MAX_PAYLOAD` bytes, and is then not valid JSON; the columns
            ``size`` and ``sha256`` cover all of it.
        """
        where, values = ("", (count,)) if session is None else (" WHERE session = ?", (session, count))
        with self._database.reading() as connection:
            rows = connection.execute(f"{_SELECT}{where} ORDER BY id DESC LIMIT ?", values)
            return [Decision(*row) for row in rows]

    def allowed(self, kind: str, server: str, tool: str, count: int, *, session: str | None = None) -> list[Decision]:
        """Return the last decisions that allowed calls of a tool, newest first.

        Args:
            kind: The kind of call.
            server: The server.
            tool: The tool.
            count: The maximum number of decisions.
            session: The session; None for all.
        """
        where, values = ("", ()) if session is None else (" AND session = ?", (session,))
        with self._database.reading() as connection:
            rows = connection.execute(
                f"{_SELECT} WHERE outcome = 'allow' AND server = ? AND tool = ? AND kind = ?{where} ORDER BY id DESC LIMIT ?",
                (server, tool, kind, *values, count),
            )
            return [Decision(*row) for row in rows]

    def close(self) -> None:
        """Close the file, after recording the number of denials without a row."""
        if not self._closed:
            if (summary := self._denials.summary(float("inf"))) is not None:
                with contextlib.suppress(StoreError), self._database.transaction() as connection:
                    connection.execute(_INSERT, _row(summary, b""))
            self._closed = True
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Denials:
    """A limit on the recorded denials of a session per minute."""

    def __init__(self) -> None:
        self._since = float("-inf")
        self._count = 0
        self._last: Decision | None = None

    def admits(self, decision: Decision) -> bool:
        if decision.at - self._since >= 60:
            self._since, self._count = decision.at, 0
        self._count += 1
        if self._count <= MAX_DENIALS:
            return True
        self._last = decision
        return False

    def summary(self, at: float) -> Decision | None:
        """Return a summary row for the denials without one, when their minute is over."""
        if self._last is None or at - self._since < 60:
            return None
        last, self._last = self._last, None
        reason = f"{self._count - MAX_DENIALS} more requests were denied within a minute; this is the last of them"
        return replace(last, reason=reason)


def _payload_limit(kept: int) -> int:
    """Return how many bytes of the next payload to keep."""
    return max(0, min(MAX_PAYLOAD, MAX_PAYLOADS - kept))


def _row(decision: Decision, payload: bytes) -> tuple[object, ...]:
    return (
        decision.at,
        decision.session,
        decision.kind,
        decision.server,
        decision.tool,
        payload,
        len(decision.payload),
        decision.sha256,
        decision.outcome,
        decision.by,
        decision.reason,
    )
