"""The audit trail: every decision about a call, with the bytes that were decided on.

A decision is on record before it has an effect: `Approvals.add` returns when its transaction is committed. With WAL and
``synchronous=NORMAL`` that survives the death of every process; a power failure can lose the last moments, and with them what
the decisions had the machine do. ``FULL`` would cost a write to the disk, milliseconds, for each call.

Rows are written in the event loop's thread: one takes 20 µs, of which a thread of its own made 160.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Self

from cellblock.errors import StateError
from cellblock.model import Decision

SCHEMA = """
CREATE TABLE IF NOT EXISTS approvals (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    session TEXT NOT NULL,
    kind TEXT NOT NULL,
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    payload BLOB NOT NULL,
    sha256 TEXT NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('allow', 'deny')),
    decided_by TEXT NOT NULL,
    reason TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS approvals_by_session ON approvals (session, id);
"""

_INSERT = (
    "INSERT INTO approvals (at, session, kind, server, tool, payload, sha256, outcome, decided_by, reason) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_SELECT = "SELECT outcome, decided_by, session, kind, server, tool, payload, at, reason FROM approvals"
_PATIENCE = 10.0
"""Seconds for which another process may keep the file locked."""


class Approvals:
    """The decisions of all sessions, in one file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the file, or make it: mode 0600, in a directory with mode 0700.

        Args:
            path: The file.

        Raises:
            OSError: The directory cannot be made.
            sqlite3.Error: The file cannot be opened, or is something else.
        """
        self._path = Path(path)
        self._connection: sqlite3.Connection | None = _connect(self._path)

    async def add(self, decision: Decision) -> None:
        """Put a decision on record: when this returns, it is there.

        Args:
            decision: The decision.

        Raises:
            StateError: The trail is closed.
            sqlite3.Error: It could not be written.
        """
        row = (
            decision.at,
            decision.session,
            decision.kind,
            decision.server,
            decision.tool,
            decision.payload,
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
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            # Waited for here and not by SQLite, which would hold up the whole loop.
            await asyncio.sleep(0.005)

    def last(self, count: int = 100, *, session: str | None = None) -> list[Decision]:
        """Return the last decisions, newest first.

        Args:
            count: How many.
            session: Of which session; None: of all.
        """
        where, values = ("", (count,)) if session is None else (" WHERE session = ?", (session, count))
        with closing(sqlite3.connect(self._path)) as connection:
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


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(SCHEMA)
        connection.execute("PRAGMA busy_timeout = 0")
    except BaseException:
        connection.close()
        raise
    return connection
