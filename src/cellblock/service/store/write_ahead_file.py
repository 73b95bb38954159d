"""A write-ahead file of database changes, until a transaction contains them.

A write takes a few microseconds instead of a hundred. The file survives the death of this process, as the database does.
Each record has the number of the transaction that will contain it, and the database has the number of the last one. No
change is therefore applied twice. After a power failure, records can be missing or damaged: reading stops at the first such
record.
"""

from __future__ import annotations

import errno
import marshal
import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

Change = tuple[str, tuple[Any, ...]]
"""An SQL statement and its values: None, numbers, texts and bytes."""

_HEAD = struct.Struct("<II")
"""Before each record: its length and its checksum."""

_PAGE = 4096
_FORMAT = 2
"""The version of `marshal` that each version of Python can read."""


class WriteAheadFile:
    """A write-ahead file. Only one process has it open."""

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Args:
            path: The path. Its directory must belong to this user alone, because the content is trusted.

        Raises:
            OSError: The file cannot be opened.
        """
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size

    def read(self, transaction: int) -> list[Change]:
        """Read the changes for a transaction, in order, up to the first damaged record."""
        data, position = os.pread(self._file, self._size, 0), 0
        changes: list[Change] = []
        while position + _HEAD.size <= len(data):
            length, checksum = _HEAD.unpack_from(data, position)
            record = data[position + _HEAD.size : position + _HEAD.size + length]
            if len(record) < length or zlib.crc32(record) != checksum:
                break
            if (read := _read(record)) is None:
                break
            number, added = read
            if number == transaction:
                changes += added
            position += _HEAD.size + length
        return changes

    def add(self, transaction: int, changes: Sequence[Change]) -> None:
        """Append changes for a transaction.

        Raises:
            OSError: The changes cannot be written; none of them is kept.
        """
        record = marshal.dumps((transaction, [*changes]), _FORMAT)
        data = _HEAD.pack(len(record), zlib.crc32(record)) + record
        try:
            if os.write(self._file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def try_out(self) -> int | None:
        """Write up to a page and remove it again; return the errno if that fails."""
        try:
            if os.write(self._file, bytes(_PAGE)) < _PAGE:
                return errno.ENOSPC
        except OSError as error:
            return error.errno
        finally:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
        return None

    def clear(self) -> None:
        """Clear the file, because the transaction is complete."""
        os.ftruncate(self._file, 0)
        self._size = 0

    def close(self) -> None:
        os.close(self._file)


def _read(record: bytes) -> tuple[int, list[Change]] | None:
    """Parse a record; return None if `WriteAheadFile.add` has not written it, although its checksum fits."""
    try:
        number, added = marshal.loads(record)  # noqa: S302  # the file belongs to this user alone
        changes: list[Change] = [(statement, tuple(values)) for statement, values in added]
    except (ValueError, EOFError, TypeError):
        return None
    whole = isinstance(number, int) and all(isinstance(statement, str) for statement, _ in changes)
    return (number, changes) if whole else None
