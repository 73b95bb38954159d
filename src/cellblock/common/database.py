"""SQLite files on the trusted side, in a directory that only this user can write to. Independent processes share them.

SQLite's locks are POSIX locks. Closing *any* descriptor of a file drops all locks that the process has on it. The last process
that closes the file then removes its ``-wal`` under this process's connections, which loses acknowledged records. So nothing
in this process opens these files except SQLite, and each file has one connection.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from cellblock.errors import StoreError

_BUSY = 30.0
"""Seconds to wait for other processes that write: twenty of them, on a busy machine with a slow disk, take more than ten."""

_PATIENT = f"PRAGMA busy_timeout = {_BUSY * 1000:.0f}"
_PAUSE = 0.005


class Database:
    """A SQLite file in WAL mode: readers do not wait for writers, and writes are atomic, even in a crash.

    All objects of a process for the same file share one connection, in any thread. It is opened on demand, again if the file
    was replaced, and never inherited by a forked process.

    Args:
        directory: The directory of the file. If missing, it is created for this user only.
        name: The file's name.
        schema: Statements such as ``CREATE TABLE IF NOT EXISTS``, run when the file is opened.
        synchronous: ``FULL``: a committed transaction survives a power failure. ``NORMAL``: it survives the death of every
            process.

    Raises:
        StoreError: The directory cannot be created, or is writable by other users.
    """

    def __init__(self, directory: Path, name: str, schema: str, *, synchronous: str = "FULL") -> None:
        _prepare(directory)
        self._path = os.path.join(os.path.realpath(directory), name)
        self._new = schema, synchronous
        self._shared: _File | None = None
        with self.reading():
            pass

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write to the file in a transaction, which an exception rolls back.

        Raises:
            StoreError: The file cannot be read or written, or is not a database.
        """
        deadline = time.monotonic() + _BUSY
        while True:
            try:
                with self._attempt() as connection:
                    yield connection
                return
            except _LockedError:
                self._check(deadline)
                time.sleep(_PAUSE)

    async def write(self, statement: str, values: tuple[Any, ...] = (), *, patience: float = _BUSY) -> None:
        """Execute a statement in its own transaction, without blocking the event loop during another's write.

        Args:
            statement: The statement.
            values: Its values.
            patience: Seconds to wait for other writers.

        Raises:
            StoreError: The file cannot be written.
        """
        deadline = time.monotonic() + patience
        while True:
            try:
                with self._file.using(wait=False) as connection, _without_waiting(connection):
                    connection.execute(statement, values)
                return
            except _LockedError:
                self._check(deadline)
                await asyncio.sleep(_PAUSE)

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """Read from the file.

        Raises:
            StoreError: The file cannot be read, or is not a database.
        """
        return self._file.using()

    def check(self) -> None:
        """Check that the file can be read and written.

        Raises:
            StoreError: It cannot, or it is damaged.
        """
        with self.transaction() as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            connection.execute(
                f"PRAGMA user_version = {time.time_ns() % 1000}"
            )  # a change without effect would not be written
        if found != "ok":
            raise StoreError(f"{self._path} is damaged: {found}")

    def version(self) -> tuple[int, ...]:
        """Return a value that differs after every change of the file by any process.

        Raises:
            StoreError: The file cannot be read.
        """
        file = self._file
        with file.using() as connection:
            (changes,) = connection.execute("PRAGMA data_version").fetchone()  # of other connections
            return file.opened, changes, connection.total_changes

    def close(self) -> None:
        """Close the file, unless other objects use it. The next use opens it again."""
        self._shared = None

    @property
    def _file(self) -> _File:
        if (file := self._shared) is None:
            with _OPENING:
                if (file := _FILES.get(self._path)) is None:
                    file = _FILES[self._path] = _File(self._path, *self._new)
            self._shared = file
        return file

    @contextmanager
    def _attempt(self) -> Iterator[sqlite3.Connection]:
        with self._file.using() as connection:
            try:
                with _without_waiting(connection):
                    connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except BaseException:  # includes interrupts: all of it or nothing
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _check(self, deadline: float) -> None:
        if time.monotonic() >= deadline:
            raise StoreError(f"{self._path} cannot be used: other processes are writing to it; try again")


class _LockedError(Exception):
    """Another process or thread is writing."""


class _File:
    """This process's connection to a file.

    Attributes:
        opened: How often it was opened.
    """

    def __init__(self, path: str, schema: str, synchronous: str) -> None:
        self._path = path
        self._schema = schema
        self._synchronous = synchronous
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self.opened = 0

    @contextmanager
    def using(self, *, wait: bool = True) -> Iterator[sqlite3.Connection]:
        """Use the connection exclusively.

        Raises:
            StoreError: The file cannot be used.
            _LockedError: Another thread uses it, and `wait` is false.
        """
        while True:
            with self._locked(wait):
                if (connection := self._current()) is not None:
                    with self._errors():
                        yield connection
                    return
            with _OPENING, self._locked(wait), self._errors():  # in this order, as in `_before_fork`
                self._open()

    @contextmanager
    def _locked(self, wait: bool) -> Iterator[None]:
        if not self._lock.acquire(blocking=wait):
            raise _LockedError
        try:
            yield
        finally:
            self._lock.release()

    def _current(self) -> sqlite3.Connection | None:
        """Return the connection, unless the file was removed or replaced since it was opened."""
        return self._connection if self._identity is not None and self._identity == _identity(self._path) else None

    def _open(self) -> None:
        if self._current() is not None:
            return
        self.close()
        try:
            _create(self._path)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be used to store state: {error.strerror}") from error
        deadline = time.monotonic() + _BUSY
        while True:
            try:
                self._connection = self._connect()
                break
            except sqlite3.OperationalError as error:
                # SQLite itself does not wait where it could wait forever: when two processes both switch to WAL mode.
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)
        self._identity = _identity(self._path)
        self.opened += 1

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            # Immediate: a transaction that reads first could not wait for a writer later, and would fail.
            connection.execute("BEGIN IMMEDIATE")
            for statement in filter(str.strip, self._schema.split(";")):
                connection.execute(statement)
            connection.execute("COMMIT")
        except BaseException:  # includes interrupts: nothing else closes it
            connection.close()
            raise
        return connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert errors to `StoreError`s that name the file. After an error, the next use opens the file again."""
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise StoreError(f"{self._path} cannot be used: {error}") from error
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self.close()
            raise StoreError(f"{self._path} cannot be used: {error}") from error

    def close(self) -> None:
        """Close the connection, with the lock held."""
        connection, self._connection, self._identity = self._connection, None, None
        if connection is not None:
            connection.close()

    def hold(self) -> None:
        """Close the connection, and block other threads until `release`."""
        self._lock.acquire()
        with suppress(sqlite3.Error):
            self.close()

    def release(self) -> None:
        self._lock.release()

    def __del__(self) -> None:
        self.close()


_OPENING = threading.RLock()
"""Held while a file is opened. It is never acquired by a thread that holds a file's lock."""

_FILES: WeakValueDictionary[str, _File] = WeakValueDictionary()
_held: list[_File] = []


def _before_fork() -> None:
    """Close all files: a forked process must not use SQLite with an inherited connection, nor next to one.

    In the child process, SQLite takes its parent's locks for its own, and so does not lock the file at all.
    """
    _OPENING.acquire()
    for file in [*_FILES.values()]:
        file.hold()
        _held.append(file)


def _after_fork() -> None:
    while _held:
        _held.pop().release()
    _OPENING.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


@contextmanager
def _without_waiting(connection: sqlite3.Connection) -> Iterator[None]:
    """Execute a write statement without waiting in SQLite, which would block the connection for other threads.

    Raises:
        _LockedError: Another process is writing.
    """
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        yield
    except sqlite3.OperationalError as error:
        if _is_busy(error):
            raise _LockedError from None
        raise
    finally:
        connection.execute(_PATIENT)


def _is_busy(error: sqlite3.Error) -> bool:
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def _create(path: str) -> None:
    """Create a missing file with mode 0600. If SQLite created it, other users could read it until its mode is changed.

    Raises:
        OSError: It cannot be created, or is a symbolic link.
    """
    with suppress(FileExistsError):
        if sys.platform == "linux":
            os.mknod(path, 0o600 | stat.S_IFREG)  # opens no descriptor, whose close would drop locks
        else:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _prepare(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        raise StoreError(f"{directory} cannot be used to store state: {error.strerror}") from error
    if found.st_uid != os.geteuid():
        raise StoreError(f"{directory} belongs to another user, who could change the files in it")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreError(f"{directory} is writable by other users, who could change its files: chmod 700 {directory}")
    if found.st_mode & 0o077:
        directory.chmod(0o700)
