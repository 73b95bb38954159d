"""SQLite files on the trusted side, in a directory that only this user can write to. Independent processes share them."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cellblock.errors import StoreError

_BUSY = 10.0
"""Seconds to wait for another process that writes."""


class Database:
    """One SQLite file, in WAL mode: readers do not wait for writers, and writes are atomic, even in a crash.

    Each operation opens the file for itself. That takes a fraction of a millisecond, and nothing stays open that a fork could
    share, a thread could misuse, or the caller would have to close.

    Args:
        directory: The directory of the file. It is created, for this user alone, if it is missing.
        name: The file's name.
        schema: ``CREATE TABLE IF NOT EXISTS`` and the like, run when the file is first used.

    Raises:
        StoreError: The directory cannot be created, or others than this user can write to it.
    """

    def __init__(self, directory: Path, name: str, schema: str) -> None:
        self._directory = directory
        self._path = directory / name
        self._prepare()
        with self.transaction() as connection:
            for statement in filter(str.strip, schema.split(";")):
                connection.execute(statement)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Open the file for writing. The changes are atomic: if an exception is raised, none is made.

        Raises:
            StoreError: The file cannot be read or written, or is not a database.
        """
        with self._open() as connection:
            # Immediate: a transaction that reads first could not wait for a writer later, and would fail.
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:  # also an interrupt: all of it or nothing
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open the file for reading.

        Raises:
            StoreError: The file cannot be read, or is not a database.
        """
        with self._open() as connection:
            yield connection

    def connect(self) -> sqlite3.Connection:
        """Open the file for a caller who uses it often, and closes it; call it within `errors`."""
        connection = sqlite3.connect(self._path, timeout=_BUSY, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except BaseException:  # also an interrupt: nobody else closes it
            connection.close()
            raise
        return connection

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors into `StoreError`s that name the file.

        Raises:
            StoreError: The file cannot be used.
        """
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self._path} cannot be used: {error}") from error

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with self.errors(), closing(self.connect()) as connection:
            yield connection

    def _prepare(self) -> None:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self._directory.stat()
        except OSError as error:
            raise StoreError(f"{self._directory} cannot be used to store state: {error.strerror}") from error
        if found.st_uid != os.geteuid():
            raise StoreError(f"{self._directory} belongs to another user, who could change the files in it")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise StoreError(f"others can write to {self._directory} and change the files in it: chmod 700 it")
        if found.st_mode & 0o077:
            self._directory.chmod(0o700)
        # Created here with mode 0600. If SQLite created it, others could read it until its mode is changed.
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreError(f"{self._path} cannot be used to store state: {error.strerror}") from error
