"""Records one session's states in memory, so that the next host can restore them.

A custodian holds the file. Records are written in few appends, and no cell waits for them. The content is trusted, because
only hosts of this user can write to it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from cellblock.host.survival.tape import punch

Record: TypeAlias = tuple[Any, ...]
"""An event: its word and its values."""

_SIZE = struct.Struct("<I")
_START = struct.Struct("<Q")
_FIRST = 4096  # offset of the first record: a page
_LIMIT = 256 * 1024  # bytes of records after which the log is rewritten, if that makes it shorter


class StateLog:
    """The log of one session. If a write fails, the log is emptied, because a partial log would be wrong.

    Attributes:
        fd: The file.
        make_base: Returns a record that replaces all earlier ones.
    """

    def __init__(self, fd: int) -> None:
        """Continue with a file that is empty or was read (`read`)."""
        self.fd = fd
        self.make_base: Callable[[], Record] = lambda: ("base",)
        self._end = _FIRST
        self._start = _FIRST
        self._longest = 0
        self._unwritten: list[bytes] = []
        self._broken = False
        self._closed = False

    @classmethod
    def make(cls) -> StateLog:
        """Create an empty log.

        Raises:
            OSError: The log cannot be created.
        """
        fd = os.memfd_create("cellblock-states")
        try:
            os.pwrite(fd, _START.pack(_FIRST), 0)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    def append(self, *record: Any) -> None:
        """Append a record. It is written within the next turn of the loop, together with others of this turn."""
        if self._broken or self._closed:
            return
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._tidy)
        self._unwritten.append(_framed(record))

    def flush(self) -> None:
        """Write the appended records."""
        unwritten, self._unwritten = self._unwritten, []
        if unwritten and not self._broken and not self._closed:
            self._write(b"".join(unwritten))

    def _tidy(self) -> None:
        """Write the appended records, and rewrite a long log. Cells call `flush` instead, which is faster."""
        self.flush()
        if self._end - self._start > max(_LIMIT, 2 * self._longest):
            self.rebase()

    def rebase(self) -> None:
        """Replace all records with one base record, and free their memory."""
        if self._broken or self._closed:
            return
        self._unwritten.clear()
        base, place = _framed(self.make_base()), self._end
        if not self._write(base):
            return
        self._longest = len(base)
        try:
            os.pwrite(self.fd, _START.pack(place), 0)
            punch(self.fd, max(self._start, _FIRST), place)
        except OSError:
            self._break()
        self._start = place

    def _write(self, data: bytes) -> bool:
        """Write at the end. Return whether there was memory for it."""
        try:
            written = os.pwrite(self.fd, data, self._end)
        except OSError:
            written = 0
        if written < len(data):
            self._break()
        self._end += len(data)
        return not self._broken

    def _break(self) -> None:
        self._broken = True
        os.ftruncate(self.fd, 0)

    def read(self) -> list[Record]:
        """Return another host's records, and continue after them; empty if that host could not write everything."""
        size = os.fstat(self.fd).st_size
        head = os.pread(self.fd, _START.size, 0)
        if len(head) < _START.size:
            os.pwrite(self.fd, _START.pack(_FIRST), 0)
            return []
        (self._start,) = _START.unpack(head)
        self._end = self._start
        records: list[Record] = []
        data = os.pread(self.fd, max(size - self._start, 0), self._start)
        start = 0
        # The last record may be cut off by the death of its writer. The file then ends within it.
        while len(data) - start >= _SIZE.size:
            (length,) = _SIZE.unpack_from(data, start)
            if len(data) - start - _SIZE.size < length:
                break
            start += _SIZE.size + length
            records.append(pickle.loads(data[start - length : start]))  # noqa: S301  # see the top of this module
        self._end += start
        os.ftruncate(self.fd, max(self._end, _FIRST))
        return records

    def close(self) -> None:
        """Close the log. Idempotent."""
        if not self._closed:
            self._closed = True
            os.close(self.fd)


def _framed(record: Record) -> bytes:
    data = pickle.dumps(record, 5)
    return _SIZE.pack(len(data)) + data
