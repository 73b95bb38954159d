"""A journal of everything sent from and to a kernel, in memory files that outlive this process.

Linux moves the bytes from the kernel's socket and pipes to a file (`splice`), and from a file to the socket (`sendfile`). At
any time, each byte is in exactly one place that the custodian also holds, so SIGKILL loses none.
docs/decisions/0032-kernels-outlive-their-host.md has the reasons.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from cellblock.host.descriptors import pending

_AUX_SIZE = 1024 * 1024
_F_SETPIPE_SZ = 1031
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
_PAGE = 4096
_RECORD = struct.Struct("<QIB")  # number of messages before it, size, kind
_START = struct.Struct("<Q")
_OFFSETS = struct.Struct("<3Q")
_PIECE = struct.Struct("<BI")
CHANNEL, STDOUT, STDERR = 0, 1, 2
_STREAMS = 3
_LOG_LIMIT, _TAPE_LIMIT = 256 * 1024, 1024 * 1024  # limits for records of earlier cells
LONG = 4 * 1024 * 1024
"""Bytes of one cell after which its output so far is recorded as a base, and the raw bytes are dropped."""


class Kind(IntEnum):
    """Kinds of records."""

    BASE = 1
    """The whole state. Records before it are no longer needed."""
    SENT = 2
    """A frame for the worker. The file's position tells how much of it was sent."""
    PIECE = 3
    """Bytes of a pipe were used."""
    EXTRA = 4
    """Output that does not come from the kernel."""
    STOP = 5
    """A cell is being stopped."""
    EXITED = 6
    """The worker's wait status."""
    BEGUN = 7
    """Handling of a request has begun, and must not begin again."""
    REPLACED = 8
    """The kernel has died and is about to be replaced; its last cell's result may not be known yet."""


class Record(NamedTuple):
    """A record: its kind, the number of the worker's messages handled since the last base, and its content."""

    kind: Kind
    messages: int
    content: bytes
    place: int


class Aux:
    """The pipe that moves bytes from sockets to files, for all journals of a host: there is no direct way.

    A memory page records the journal that owns the pipe's bytes, for the next host.
    """

    def __init__(self, reader: int, writer: int, owner: int) -> None:
        self.fds = (reader, writer, owner)
        self._reader, self._writer = reader, writer
        self._page = mmap.mmap(owner, _PAGE)
        self._owner = memoryview(self._page).cast("Q")

    @classmethod
    def make(cls) -> Aux:
        """Create the pipe."""
        reader, writer = os.pipe()
        fcntl.fcntl(writer, _F_SETPIPE_SZ, _AUX_SIZE)
        os.set_blocking(reader, False)
        owner = os.memfd_create("cellblock-owner")
        os.ftruncate(owner, _PAGE)
        return cls(reader, writer, owner)

    def left(self) -> int | None:
        """Return the number of the journal whose bytes are still in the pipe; None if it is empty."""
        return self._owner[0] if pending(self._reader) else None

    def move(self, source: int, number: int, tape: int, size: int, most: int) -> int:
        """Move available bytes of a socket to the end of a file with a known size.

        `number` is the number of the journal that owns the file, and `most` the maximum number of bytes.

        Returns:
            The number of bytes; 0 at the end of the socket.

        Raises:
            BlockingIOError: There is no data now.
        """
        self._owner[0] = number
        moved = os.splice(source, self._writer, min(most, _AUX_SIZE), flags=os.SPLICE_F_NONBLOCK)
        try:
            self.flush(tape, size, moved)
        except OSError:  # out of memory: no byte of this kernel may become another's
            self.drain()
            raise
        return moved

    def flush(self, tape: int, size: int, count: int) -> None:
        """Move the pipe's content to the end of a file."""
        while count > 0:
            done = os.splice(self._reader, tape, count, offset_dst=size)
            size += done
            count -= done

    def drain(self) -> None:
        """Drop the pipe's content."""
        while count := pending(self._reader):
            os.read(self._reader, count)

    def close(self) -> None:
        """Close its descriptors."""
        self._owner.release()
        self._page.close()
        for fd in self.fds:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class Base:
    """A kernel's complete state at one time.

    Attributes:
        offsets: Handled bytes of the channel, standard output and standard error.
        content: The rest, for `cellblock.host.survival.recovery`.
    """

    offsets: tuple[int, int, int]
    content: bytes


class Tape:
    """The journal of one kernel: a file for each stream from it, and a log of everything else.

    Attributes:
        number: The kernel's number.
        fds: The files of the log, the channel, standard output and standard error.
        taken: Number of the worker's messages handled since the last base.
    """

    def __init__(self, number: int, fds: tuple[int, int, int, int], aux: Aux) -> None:
        self.number = number
        self.fds = fds
        self.taken = 0
        self._aux = aux
        self._log, *self._files = fds
        self._sizes = [os.fstat(fd).st_size for fd in self._files]
        self._used = [0] * _STREAMS
        self._based = 0
        self._old: tuple[int, tuple[int, int, int]] | None = None
        self._begun = b""
        self._end = max(os.fstat(self._log).st_size, _PAGE)
        self._punched = _PAGE
        self._dropped = 0
        self._sending: list[tuple[int, int]] = []
        """The places in the log of frames that were not sent yet, or only in part."""

    @classmethod
    def make(cls, number: int, aux: Aux) -> Tape:
        """Create an empty journal."""
        fds: list[int] = []
        try:
            fds.extend(os.memfd_create(f"cellblock-{name}-{number}") for name in ("log", "channel", "stdout", "stderr"))
            os.pwrite(fds[0], _START.pack(_PAGE), 0)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return cls(number, (fds[0], fds[1], fds[2], fds[3]), aux)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)

    # -- from the kernel -----------------------------------------------------------------------------------------------

    def unused(self, stream: int) -> int:
        """Return the number of recorded bytes of a stream that are still unread."""
        return self._sizes[stream] - self._used[stream]

    def receive(self, source: int, size: int) -> bytes:
        """Read from the channel; b"" at its end.

        Raises:
            BlockingIOError: There is no data now.
            OSError: The socket is broken.
        """
        if not self.unused(CHANNEL):
            try:
                self._sizes[CHANNEL] += self._aux.move(source, self.number, self._files[CHANNEL], self._sizes[CHANNEL], size)
            except ConnectionError:
                return b""
        return self.again(CHANNEL, size)

    def read_pipe(self, stream: int, source: int, size: int) -> bytes | None:
        """Read from a pipe; None without data, b"" at its end."""
        if (unused := self.unused(stream)) < size:
            tape, end = self._files[stream], self._sizes[stream]
            try:
                moved = os.splice(source, tape, size - unused, offset_dst=end, flags=os.SPLICE_F_NONBLOCK)
            except BlockingIOError:
                if not unused:
                    return None
            else:
                self._sizes[stream] += moved
        data = self.again(stream, size)
        if data:
            self.append(Kind.PIECE, _PIECE.pack(stream, len(data)))
        return data

    def again(self, stream: int, size: int) -> bytes:
        """Read bytes of a stream from the journal only."""
        data = os.pread(self._files[stream], min(size, self.unused(stream)), self._used[stream])
        self._used[stream] += len(data)
        return data

    # -- to the kernel -------------------------------------------------------------------------------------------------

    def queue(self, frame: bytes) -> None:
        place = self.append(Kind.SENT, frame)
        self._drop()
        self._sending.append((place, place + len(frame)))
        if len(self._sending) == 1:
            os.lseek(self._log, place, os.SEEK_SET)

    @property
    def sending(self) -> bool:
        """Whether data is still unsent."""
        return bool(self._sending)

    def drop_sending(self) -> None:
        """Drop unsent data, because the socket is closed."""
        self._sending.clear()

    def flush(self, target: int) -> None:
        """Send as much as possible now.

        Raises:
            BlockingIOError: The socket buffer is full.
            OSError: The socket is broken.
        """
        while self._sending:
            place = os.lseek(self._log, 0, os.SEEK_CUR)
            end = self._sending[0][1]
            # sendfile advances the file's position with the bytes: one step for other processes.
            sent = os.sendfile(target, self._log, None, end - place)
            if place + sent >= end:
                del self._sending[0]
                if self._sending:
                    os.lseek(self._log, self._sending[0][0], os.SEEK_SET)

    # -- the log -------------------------------------------------------------------------------------------------------

    def append(self, kind: Kind, content: bytes) -> int:
        """Write a record. Return the offset of its content in the log."""
        return self._write(self._begun + _RECORD.pack(self.taken, len(content), kind), content)

    def _write(self, head: bytes, content: bytes) -> int:
        """Write at the end. Return the offset of the content.

        Raises:
            OSError: There is no room. A pending base is written with the next record instead.
        """
        size = len(head) + len(content)
        if os.pwritev(self._log, (head, content), self._end) < size:
            os.ftruncate(self._log, self._end)  # else its beginning could look like the end of the next record
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._begun = b""
        self._end += size
        return self._end - len(content)

    def base(self, offsets: tuple[int, int, int], content: bytes, *, more: bool = False) -> None:
        """Write the whole state (`Base`). Drop earlier records if there are many.

        With `more`, another record follows at once, and both are written together.

        Raises:
            OSError: There is no room. The last base stays valid.
        """
        place = self._end
        head = _RECORD.pack(0, _OFFSETS.size + len(content), Kind.BASE) + _OFFSETS.pack(*offsets)
        if more:
            self._begun = head + content
        else:
            self._write(head, content)  # nothing counts from a base that cannot be written
        self.taken = 0
        self._based = sum(offsets)
        if place - self._punched > _LOG_LIMIT or self._based - self._dropped > _TAPE_LIMIT:
            self._old = place, offsets
        if not more:
            self._drop()

    @property
    def length(self) -> int:
        """Number of bytes from the kernel since the last base."""
        return self._used[CHANNEL] + self._used[STDOUT] + self._used[STDERR] - self._based

    def _drop(self) -> None:
        """Free the memory of everything before a written base."""
        if self._old is None or self._sending:
            return  # it may contain frames in flight
        (place, offsets), self._old = self._old, None
        os.pwrite(self._log, _START.pack(place), 0)
        punch(self._log, self._punched, place)
        for fd, offset in zip(self._files, offsets, strict=True):
            punch(fd, 0, offset)
        self._punched = place // _PAGE * _PAGE
        self._dropped = sum(offsets)

    # -- recovery ------------------------------------------------------------------------------------------------------

    def take_left(self) -> None:
        """Take the bytes that another process left in the pipe on their way here."""
        count = pending(self._aux.fds[0])
        self._aux.flush(self._files[CHANNEL], self._sizes[CHANNEL], count)
        self._sizes[CHANNEL] += count

    def recover(self) -> tuple[Base, list[Record]]:
        """Read another process's log. Return the last base and the records after it.

        Reading resumes at the base, and unsent frames are queued again.

        Raises:
            ValueError: There is no base.
        """
        (self._punched,) = _START.unpack(os.pread(self._log, _START.size, 0))
        records = list(self._records(self._punched))
        last = max((number for number, record in enumerate(records) if record.kind is Kind.BASE), default=None)
        if last is None:
            raise ValueError("its tape has no base")
        self._end = records[-1].place + len(records[-1].content)
        os.ftruncate(self._log, self._end)  # a truncated record may follow
        sent = os.lseek(self._log, 0, os.SEEK_CUR)
        frames = [(record.place, record.place + len(record.content)) for record in records if record.kind is Kind.SENT]
        self._sending = [(place, end) for place, end in frames if end > sent]
        if self._sending and sent < self._sending[0][0]:
            os.lseek(self._log, self._sending[0][0], os.SEEK_SET)
        size, content = _OFFSETS.size, records[last].content
        offsets = _OFFSETS.unpack(content[:size])
        self._used = [*offsets]
        self._based = self._dropped = sum(offsets)
        return Base((offsets[0], offsets[1], offsets[2]), content[size:]), records[last + 1 :]

    def _records(self, place: int) -> Iterator[Record]:
        """Yield the records from an offset on.

        The last one may be truncated by the death of its writer. The file then ends within it: a write grows a file page by
        page, as the pages are filled.
        """
        log = os.pread(self._log, self._end - place, place)
        start = 0
        while len(log) - start >= _RECORD.size:
            messages, size, kind = _RECORD.unpack_from(log, start)
            content = log[start + _RECORD.size : start + _RECORD.size + size]
            if len(content) < size:
                return
            yield Record(Kind(kind), messages, content, place + start + _RECORD.size)
            start += _RECORD.size + size

    @property
    def used(self) -> tuple[int, int, int]:
        """The number of bytes read from each stream."""
        channel, stdout, stderr = self._used
        return channel, stdout, stderr


def piece(content: bytes) -> tuple[int, int]:
    """Return the stream and the byte count in a `PIECE` record."""
    stream, count = _PIECE.unpack(content)
    return stream, count


def punch(fd: int, start: int, end: int) -> None:
    """Free the memory of a part of a file. Its offsets are unchanged."""
    # Whole pages only: the worker may not have read the bytes of the others yet, and would read zeros.
    start, end = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
    if end > start:
        _libc.fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(start), ctypes.c_long(end - start))


_libc = ctypes.CDLL(None)
