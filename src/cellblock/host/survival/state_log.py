"""The log of one session's state in memory, so that the next host can continue the session.

A custodian holds the file. Events are written in few appends, and no cell waits for them. The content is trusted, because
only hosts of this user can write to it.
"""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cellblock.host.kernels.session_state import SessionState, StateWriter
from cellblock.host.kernels.state_events import EVENTS, Filed, Looked, Undid, Went
from cellblock.host.snapshots import Snapshot
from cellblock.host.survival.tape import punch

if TYPE_CHECKING:
    from cellblock.host.kernels.state_events import Event
    from cellblock.host.snapshots.written import Description

_SIZE = struct.Struct("<I")
_START = struct.Struct("<Q")
_FIRST = 4096  # offset of the first record: a page
_LIMIT = 256 * 1024  # bytes of records after which the log is rewritten, if that makes it shorter


class StateLog(StateWriter):
    """The log of one session: its state at one time, and the events since.

    If a write fails, the log is emptied, because a partial log would be wrong.

    Attributes:
        fd: The file.
    """

    def __init__(self, fd: int) -> None:
        """Continue with a file that is empty or was read (`read`)."""
        self.fd = fd
        self._state: SessionState | None = None
        self._describe: Callable[[Snapshot], Description | None] = lambda _: None
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

    def follow(self, state: SessionState, describe: Callable[[Snapshot], Description | None]) -> None:
        """Write all later events of a state, and first the state itself, unless it was read from this log.

        `describe` describes its snapshots for the next host (`Store.describe`).
        """
        self._state, self._describe = state, describe
        state.log = self
        if not state.recalled:
            self.rewrite()

    def write(self, event: Event) -> None:
        """Append an event. It is written within the next turn of the loop, together with others of this turn."""
        if self._broken or self._closed:
            return
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._tidy)
        self._unwritten.append(self._framed(event))

    def settle(self) -> None:
        """Write the appended events."""
        unwritten, self._unwritten = self._unwritten, []
        if unwritten and not self._broken and not self._closed:
            self._write(b"".join(unwritten))

    def _tidy(self) -> None:
        """Write the appended events, and rewrite a long log. Cells call `settle` instead, which is faster."""
        self.settle()
        if self._end - self._start > max(_LIMIT, 2 * self._longest):
            self.rewrite()

    def rewrite(self, state: SessionState | None = None) -> None:
        """Replace all records with the state, or one about to be reached, and free their memory."""
        if (state := state or self._state) is None or self._broken or self._closed:
            return
        self._unwritten.clear()
        base, place = self._framed(state), self._end
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

    def read(self) -> list[Any]:
        """Return another host's state and events, and continue after them; empty if that host could not write everything."""
        size = os.fstat(self.fd).st_size
        head = os.pread(self.fd, _START.size, 0)
        if len(head) < _START.size:
            os.pwrite(self.fd, _START.pack(_FIRST), 0)
            return []
        (self._start,) = _START.unpack(head)
        self._end = self._start
        records: list[Any] = []
        data = os.pread(self.fd, max(size - self._start, 0), self._start)
        start = 0
        # The last record may be cut off by the death of its writer. The file then ends within it.
        while len(data) - start >= _SIZE.size:
            (length,) = _SIZE.unpack_from(data, start)
            if len(data) - start - _SIZE.size < length:
                break
            start += _SIZE.size + length
            record = pickle.loads(data[start - length : start])  # noqa: S301  # see the top of this module
            records.append(record if isinstance(record, SessionState) else EVENTS[record[0]](*record[1:]))
        self._end += start
        os.ftruncate(self.fd, max(self._end, _FIRST))
        return records

    def close(self) -> None:
        """Close the log. Idempotent."""
        if not self._closed:
            self._closed = True
            os.close(self.fd)

    def _framed(self, record: Event | SessionState) -> bytes:
        written = record if isinstance(record, SessionState) else (type(record).__name__, *record)  # shorter than its class
        if isinstance(record, (SessionState, Looked, Filed, Went, Undid)):
            file = io.BytesIO()
            _Pickler(file, self._describe).dump(written)
            data = file.getvalue()
        else:
            data = pickle.dumps(written, 5)
        return _SIZE.pack(len(data)) + data


class _Pickler(pickle.Pickler):
    """A pickler that replaces snapshots with their descriptions."""

    def __init__(self, file: io.BytesIO, describe: Callable[[Snapshot], Description | None]) -> None:
        super().__init__(file, 5)
        self._describe = describe

    def reducer_override(self, value: object) -> Any:
        if type(value) is not Snapshot:
            return NotImplemented
        described = self._describe(value)
        return (type(None), ()) if described is None else (type(described), tuple(described))
