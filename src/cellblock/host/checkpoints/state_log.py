"""What a host writes down of the states of one session, so that the next host can go back to them: a log in memory.

A custodian holds the file. Records are written in few appends, never in the way of a cell, and none is waited for. Content is
trusted: nobody but hosts of this user can write to it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from cellblock.host.kernels.tape import punch

Record: TypeAlias = tuple[Any, ...]
"""What has happened, by a word, and what belongs to it."""

_SIZE = struct.Struct("<I")
_START = struct.Struct("<Q")
_FIRST = 4096  # where the first record is: a page begins there
_LIMIT = 256 * 1024  # bytes of records after which all is written anew, if that is shorter


class StateLog:
    """The log of one session. If something cannot be written, it is emptied: a part of it would be wrong.

    Attributes:
        fd: The file.
        make_base: Returns a record that stands for all before it.
    """

    def __init__(self, fd: int) -> None:
        """Go on with a file, in which nothing was written, or which was read (`read`)."""
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
        """Make an empty one.

        Raises:
            OSError: There is no room.
        """
        fd = os.memfd_create("cellblock-states")
        try:
            os.pwrite(fd, _START.pack(_FIRST), 0)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    def append(self, *record: Any) -> None:
        """Write a record, at the latest in the next turn of the loop, in one piece with what else comes in this one."""
        if self._broken or self._closed:
            return
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._tidy)
        self._unwritten.append(_framed(record))

    def flush(self) -> None:
        """Write what was appended."""
        unwritten, self._unwritten = self._unwritten, []
        if unwritten and not self._broken and not self._closed:
            self._write(b"".join(unwritten))

    def _tidy(self) -> None:
        """Write what was appended, and all of it anew if it is long: not in the way of a cell, for which `flush` is called."""
        self.flush()
        if self._end - self._start > max(_LIMIT, 2 * self._longest):
            self.rebase()

    def rebase(self) -> None:
        """Write one record that stands for all before it, and give back the memory of these."""
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
        """Write at the end; return whether there was memory for it."""
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
        """Return what another host has written, and go on after it; empty if that could not write all of it."""
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
        # The last record may have been cut off by the end of its writer: the file then ends within it.
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
        """Close it. It can be repeated."""
        if not self._closed:
            self._closed = True
            os.close(self.fd)


def _framed(record: Record) -> bytes:
    data = pickle.dumps(record, 5)
    return _SIZE.pack(len(data)) + data
