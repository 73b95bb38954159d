"""The audit trail: every decision about a call, with the bytes that were decided on.

A decision is on record before it has an effect: `Approvals.add` returns when its transaction is committed. With WAL and
``synchronous=NORMAL`` that survives the death of every process; a power failure can lose the last moments, and with them what
the decisions had the machine do. ``FULL`` would cost a write to the disk, milliseconds, for each call.

Rows are written in the event loop's thread: one takes 20 µs, of which a thread of its own made 160.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Self

from cellblock import config
from cellblock.errors import StateError, StoreError
from cellblock.model import Decision
from cellblock.store.database import Database

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
CREATE INDEX IF NOT EXISTS approvals_by_session ON approvals (session, id)
"""

_INSERT = (
    "INSERT INTO approvals (at, session, kind, server, tool, payload, size, sha256, outcome, decided_by, reason) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_SELECT = "SELECT outcome, decided_by, session, kind, server, tool, payload, at, reason FROM approvals"
_PATIENCE = 10.0
"""Seconds for which another process may keep the file locked."""

MAX_PAYLOAD = 64 * 1024
"""Bytes that are kept of what was decided on; its length and its digest are those of all of it."""

_FILE = "approvals.db"


class Approvals:
    """The decisions of all sessions, in one file."""

    def __init__(self, directory: Path | None = None) -> None:
        """Open the file, or make it.

        Args:
            directory: Where it is kept; `config.state_directory` by default.

        Raises:
            StoreError: The directory or the file cannot be used.
        """
        directory = config.state_directory() if directory is None else directory
        self._database = Database(directory, _FILE, _SCHEMA)
        # Kept open: to open it takes longer than to write a row.
        self._connection: sqlite3.Connection | None = sqlite3.connect(directory / _FILE, timeout=0, isolation_level=None)
        self._connection.execute("PRAGMA synchronous = NORMAL")

    async def add(self, decision: Decision) -> None:
        """Put a decision on record: when this returns, it is there.

        Args:
            decision: The decision.

        Raises:
            StateError: The trail is closed.
            StoreError: It could not be written.
        """
        row = (
            decision.at,
            decision.session,
            decision.kind,
            decision.server,
            decision.tool,
            decision.payload[:MAX_PAYLOAD],
            len(decision.payload),
            decision.sha256,
            decision.outcome,
            decision.by,
            decision.reason,
        )
        deadline = time.monotonic() + _PATIENCE
        while True:
            if self._connection is None:
                raise StateError("The approvals are closed; nothing can be recorded.")
            try:
                self._connection.execute(_INSERT, row)
                return
            except sqlite3.Error as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise StoreError(f"a decision could not be recorded: {error}") from error
            # Waited for here and not by SQLite, which would hold up the whole loop.
            await asyncio.sleep(0.005)

    def last(self, count: int = 100, *, session: str | None = None) -> list[Decision]:
        """Return the last decisions, newest first.

        Args:
            count: How many.
            session: Of which session; None: of all.

        Returns:
            The decisions. Of a payload that was longer, there are the first `MAX_PAYLOAD` bytes, which are no JSON; the
            columns ``size`` and ``sha256`` say what it was.
        """
        where, values = ("", (count,)) if session is None else (" WHERE session = ?", (session, count))
        with self._database.reading() as connection:
            rows = connection.execute(f"{_SELECT}{where} ORDER BY id DESC LIMIT ?", values)
            return [Decision(*row) for row in rows]

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
