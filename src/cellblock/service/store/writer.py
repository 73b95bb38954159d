"""Writes to one SQLite file from an event loop: many small changes, in few transactions.

The file belongs to one process, which keeps one connection open. A change waits a few milliseconds for others in the same
transaction. A change that must survive the death of this process is written to a plain file meanwhile (`WriteAheadFile`).
Writes never wait for the disk (``synchronous=NORMAL``). Committed changes survive the death of every process. A power
failure can lose the last moments, but leaves no gaps. SQLite checkpoints, which have to wait for the disk, run in a thread.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from cellblock.common.database import Database
from cellblock.errors import StoreError
from cellblock.service.store.write_ahead_file import Change, WriteAheadFile

_log = logging.getLogger("cellblock.store")

CHECKPOINT_BYTES = 4 * 1024 * 1024
"""Bytes of the write-ahead log after which a checkpoint moves it into the file."""

MAX_WAITING = 64 * 1024 * 1024
"""Bytes of changes that may wait while nothing can be written; further ones are dropped."""

_LARGE_LOG = 4 * CHECKPOINT_BYTES
"""Bytes of the write-ahead log after which heavy writers have to wait for a checkpoint (backpressure)."""

_CATCHING_UP = 2.0
"""Maximum seconds that they wait."""

_COMMIT = 12 * 1024
"""Bytes that a small transaction takes."""

_FULL = 1024 * 1024
"""Bytes of changes that are written without waiting for others."""

_SOON, _RETRY = 0.02, 1.0
_PATIENCE = 0.04
"""SQLite's busy timeout, in seconds: the event loop blocks for at most this long."""

_ROUNDS = 100
"""How often a checkpoint continues with what was written meanwhile."""

_CHECKED = 64 * 1024 * 1024
"""Files up to this many bytes are checked completely when they are opened; for larger ones, that would take seconds."""

_FRESH = 1.0
"""Seconds for which a transaction shows that changes can be written."""

_UNFIT = (sqlite3.Warning, ValueError, TypeError, OverflowError)
"""Errors of `sqlite3` for an invalid statement or value, besides its own error class."""

_DISK_FULL = "the disk is full"
_FILES = ("", "-wal", "-shm", "-ahead")
_TRANSACTIONS = (
    "CREATE TABLE IF NOT EXISTS transactions (one INTEGER PRIMARY KEY, number INTEGER NOT NULL) STRICT;"
    "INSERT OR IGNORE INTO transactions (one, number) VALUES (1, 0)"
)
"""Counts the transactions that have included the content of the `WriteAheadFile`."""


class Writer:
    """One file, and its connection.

    Attributes:
        moved: The new path of an unreadable file; None if the file was readable.
        problem: Why nothing can be written now; empty if writing works.
        lost: How many changes were dropped because nothing could be written for long.
    """

    def __init__(self, directory: Path | None, name: str, schema: str) -> None:
        """Open or create the file. Set a damaged file aside, and create a new one.

        Args:
            directory: The directory; None for a database in memory.
            name: The file's name.
            schema: The tables.

        Raises:
            StoreError: The directory or the file cannot be used.
        """
        schema = f"{schema};{_TRANSACTIONS}"
        self._path = None if directory is None else directory / name
        self.moved = None if directory is None else _prepare(directory, name, schema)
        self._ahead = None if directory is None else _open_write_ahead_file(directory / f"{name}-ahead")
        self._connection = sqlite3.connect(self._path or ":memory:", timeout=_PATIENCE, isolation_level=None)
        if directory is None:
            self._connection.executescript(schema)
        for setting in ("synchronous = NORMAL", "wal_autocheckpoint = 0", f"journal_size_limit = {_LARGE_LOG}"):
            self._connection.execute(f"PRAGMA {setting}")
        self.problem = ""
        self.lost = 0
        self._changes: list[Change] = []
        self._bytes = 0
        self._safe = 0  # how many of the changes are in the `WriteAheadFile`
        self._scheduled: asyncio.Handle | None = None
        self._when_written: list[Callable[[], object]] = []
        self._when_safe: list[Callable[[], object]] = []
        self._checkpoint: threading.Thread | None = None
        self._is_log_large = False
        self._written = 0
        self._checks = 0
        self._succeeded = -math.inf
        ((self._transaction,),) = self._connection.execute("SELECT number + 1 FROM transactions")
        self._take_up()

    def _take_up(self) -> None:
        """Write the changes that the previous process left in the `WriteAheadFile`. While the disk is full, they wait."""
        if self._ahead is None:
            return
        self._changes = self._ahead.read(self._transaction)
        self._safe = len(self._changes)
        if self._changes and (error := self._commit(self._changes)) is not None:
            if not _is_wrong(error):
                return
            # Another version with other tables wrote them.
            _log.error("%d changes of the previous process cannot be written to %s: %s", self._safe, self._path, error)
            self.problem = ""
        elif self._changes:
            self._note_written()
        self._changes, self._safe = [], 0
        self._ahead.clear()  # including damaged records: nothing after them could be read

    def read(self, query: str, values: tuple[Any, ...] = (), *, pending: bool = True) -> list[tuple[Any, ...]]:
        """Query the database.

        Args:
            query: The query.
            values: The query's values.
            pending: Whether to write pending changes first, which takes a transaction.

        Raises:
            StoreError: The rows cannot be read.
        """
        if pending and self._changes:
            self.flush()
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{self._path} cannot be read: {error}") from error

    def write(self, *changes: Change) -> bool:
        """Write changes now in one transaction, after pending ones.

        Returns:
            Whether they were written. False if a change violates a uniqueness constraint.

        Raises:
            StoreError: The changes cannot be written; pending ones stay pending.
        """
        error = self._commit([*self._changes, *changes])
        if isinstance(error, sqlite3.IntegrityError):
            return False
        if error is not None:
            raise self._unwritable(error) from error
        self._note_written()
        return True

    def check(self) -> str:
        """Check whether changes can be written now; return why not, or an empty text.

        After a refusal, no change is pending, so nothing else would retry. Soon after a transaction, nothing is written.
        """
        if not self.problem and time.monotonic() - self._succeeded < _FRESH:
            return ""
        with suppress(StoreError):
            self._checks = (self._checks + 1) % 1000
            self.write((f"PRAGMA user_version = {self._checks}", ()))  # a change without effect would not be written
        return self.problem

    def later(self, statement: str, values: tuple[Any, ...], size: int = 0) -> None:
        """Write a change soon, together with others. While nothing can be written, the change waits.

        Args:
            statement: The change.
            values: The values.
            size: The size of the values.
        """
        if self._bytes + size > MAX_WAITING and self.problem:
            self.lost += 1
            return
        self._bytes += size + 64
        self._changes.append((statement, values))
        self._schedule(_SOON)

    def keep(self, statement: str, values: tuple[Any, ...], size: int = 0) -> None:
        """Write a change soon. When this returns, it and all pending ones survive the death of this process.

        Args:
            statement: The change.
            values: The values.
            size: The size of the values.

        Raises:
            StoreError: The change cannot be written; pending ones stay pending.
        """
        if self.problem:  # only a transaction shows whether the change can be written
            self.write((statement, values))
            return
        self.later(statement, values, size)
        if self._make_safe() is not None:
            # On a full disk, the database's log may still have preallocated space.
            self._changes.pop()
            self._bytes -= size + 64
            self.write((statement, values))

    def _unwritable(self, error: Exception) -> StoreError:
        reason = self._reason(error)
        what = "free disk space, then try again" if reason == _DISK_FULL else "try again"
        return StoreError(f"{self._path} cannot be written: {reason}; nothing was done: {what}")

    def make_safe(self) -> None:
        """Make pending changes survive the death of this process, if possible."""
        if self.problem or self._bytes > _FULL or self._make_safe() is not None:
            self.flush()

    def when_safe(self, function: Callable[[], object]) -> None:
        """Call a function at the end of this iteration of the loop, when pending changes are safe or have failed."""
        if not self._when_safe:
            asyncio.get_running_loop().call_soon(self._tell_safe)
        self._when_safe.append(function)

    def _tell_safe(self) -> None:
        self.make_safe()
        functions, self._when_safe = self._when_safe, []
        for function in functions:
            function()

    def _make_safe(self) -> OSError | None:
        """Write pending changes to the `WriteAheadFile`; return the error, if any."""
        if self._ahead is not None and self._safe < len(self._changes):
            try:
                self._ahead.add(self._transaction, self._changes[self._safe :])
            except OSError as error:
                self._note_problem(error)
                return error
            self._safe = len(self._changes)
        return None

    def when_written(self, function: Callable[[], object]) -> None:
        """Call a function soon, when pending changes are in the database, or cannot be written."""
        self._when_written.append(function)
        self._schedule(_SOON)

    def flush(self) -> None:
        """Write pending changes, if possible."""
        self._cancel_schedule()
        self._try_to_commit()
        functions, self._when_written = self._when_written, []
        for function in functions:
            function()
        if self._changes:
            self._schedule(_RETRY)

    def _try_to_commit(self) -> None:
        if self._changes and self._commit(self._changes) is None:
            self._note_written()

    async def caught_up(self) -> None:
        """Wait for a checkpoint if SQLite's write-ahead log is too large. Heavy writers should call this regularly.

        The log restarts only when a checkpoint has moved all of it, which is impossible while more is written. Moving the
        rest in the loop would block the loop until the disk has written it.
        """
        deadline = time.monotonic() + _CATCHING_UP
        while self._is_behind() and time.monotonic() < deadline:  # noqa: ASYNC110  # a thread cannot set an Event
            await asyncio.sleep(_SOON)

    def _is_behind(self) -> bool:
        return self._is_moving() and (self._is_log_large or self._written > _LARGE_LOG)

    def _may_wait(self) -> bool:
        """Return whether pending changes can wait: they are safe, few, and a checkpoint needs a quiet moment."""
        if self._ahead is None or self.problem or self._bytes > _FULL or not self._is_behind():
            return False
        return self._make_safe() is None

    def _is_moving(self) -> bool:
        return self._checkpoint is not None and self._checkpoint.is_alive()

    def close(self) -> None:
        """Write pending changes, and close the file."""
        self._cancel_schedule()
        if self._checkpoint is not None:
            self._checkpoint.join()
        self._try_to_commit()
        self._changes = []
        self._connection.close()
        if self._ahead is not None:
            self._ahead.close()

    def _cancel_schedule(self) -> None:
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None

    def _schedule(self, delay: float) -> None:
        """Schedule a write, unless one is already scheduled."""
        if self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_later(delay, self._write_waiting)

    def _write_waiting(self) -> None:
        self._scheduled = None
        if self._may_wait():
            self._schedule(_SOON)
        else:
            self.flush()

    def _commit(self, changes: list[Change]) -> sqlite3.Error | None:
        """Write changes in one transaction; return the error, if any."""
        execute = self._connection.execute
        try:
            execute("BEGIN IMMEDIATE")
            for statement, values in changes:
                execute(statement, values)
            if self._safe:
                execute("UPDATE transactions SET number = ?", (self._transaction,))
            execute("COMMIT")
        except (sqlite3.Error, *_UNFIT) as error:
            with suppress(sqlite3.Error):  # it may have been rolled back already
                execute("ROLLBACK")
            if not isinstance(error, sqlite3.Error):
                error = sqlite3.ProgrammingError(str(error))
            if isinstance(error, sqlite3.IntegrityError):
                return error  # the file itself is fine
            self._note_problem(error)
            return error
        self._succeeded = time.monotonic()
        if self.problem:
            _log.warning("%s can be written again", self._path)
            self.problem = ""
        return None

    def _note_problem(self, error: Exception) -> None:
        reason = self._reason(error)
        if not self.problem:
            _log.error("%s cannot be written: %s", self._path, reason)
        self.problem = reason

    def _reason(self, error: Exception) -> str:
        """Return why a write failed. SQLite hides the system's error; a trial write reveals it."""
        number = error.errno if isinstance(error, OSError) else None
        if isinstance(error, sqlite3.Error) and self._ahead is not None:
            number = self._ahead.try_out()
        if number in (errno.ENOSPC, errno.EDQUOT) or "disk is full" in str(error):
            return _DISK_FULL
        if number == errno.EROFS:
            return "its file system is read-only"
        return str(error) if number is None else os.strerror(number)

    def _note_written(self) -> None:
        self._written += self._bytes + _COMMIT
        self._changes, self._bytes = [], 0
        if self._safe and self._ahead is not None:
            self._safe = 0
            self._transaction += 1
            self._ahead.clear()
        if self._path is None or self._written < CHECKPOINT_BYTES or self._is_moving():
            return
        self._written, self._is_log_large = 0, False
        with suppress(OSError):
            self._is_log_large = os.stat(f"{self._path}-wal").st_size > _LARGE_LOG
        checkpoint = threading.Thread(target=_checkpoint, args=(self._path,), daemon=True)
        try:
            checkpoint.start()
        except RuntimeError as error:  # no thread can be started: try again after as many bytes
            _log.warning("no checkpoint of %s: %s", self._path, error)
        else:
            self._checkpoint = checkpoint


def _open_write_ahead_file(path: Path) -> WriteAheadFile:
    try:
        return WriteAheadFile(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be used to store state: {error.strerror}") from error


def _prepare(directory: Path, name: str, schema: str) -> Path | None:
    """Ensure that the file is usable; return the new path of a damaged file, if any."""
    try:
        with closing(Database(directory, name, schema)) as database:
            _check(database)
    except StoreError as error:
        if not _is_damaged(error):
            raise
        moved = _move_aside(directory / name)
        _log.error("%s is damaged (%s); it was moved to %s, and a new one is made", directory / name, str(error), moved)
        Database(directory, name, schema).close()
        return moved
    return None


def _checkpoint(path: Path) -> None:
    """Run SQLite checkpoints, which move the write-ahead log into the file and sync it. That can take long.

    Each round moves what was written during the previous one, which is less each time. The log restarts only if nothing is
    left. SQLite's result of one round is not enough, because it counts the pages from the start of that round.
    """
    before = None
    try:
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
            for _ in range(_ROUNDS):
                _, _, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                if moved == before:  # nothing was written during the last round, or a reader blocks the rest
                    break
                before = moved
    except sqlite3.Error as error:
        _log.debug("no checkpoint of %s: %s", path, error)


def _check(database: Database) -> None:
    with database.reading() as connection:
        pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        if pages * size > _CHECKED:
            return
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise StoreError(f"it is damaged: {found}") from sqlite3.DatabaseError(found)


def _is_damaged(error: StoreError) -> bool:
    cause = error.__cause__
    code = getattr(cause, "sqlite_errorcode", None)
    if code is None:
        return isinstance(cause, sqlite3.DatabaseError)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


def _is_wrong(error: sqlite3.Error) -> bool:
    """Return whether a change itself caused an error, so that a retry would fail, too."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE)
    return code & 0xFF in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_MISUSE)


def _move_aside(path: Path) -> Path:
    moved = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    for suffix in _FILES:
        with suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{moved}{suffix}")
    return moved
