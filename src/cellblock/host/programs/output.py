"""The output of a program, with backpressure or truncated to the newest part."""

from __future__ import annotations

import asyncio
import os
from collections import deque

from cellblock.host.descriptors import pending, read_some
from cellblock.model.programs import Keep, ProgramOutput, ProgramStream

ROOM = 1024 * 1024
"""Bytes of output that are kept for readers. With ``keep="all"`` the program waits when this many were not taken."""

_PIECES = 4096
"""Pieces that are kept: a program may print single bytes."""
_SMALL = 4096
"""The next output is appended to a piece that is smaller."""


class Output:
    """The output of one program. Positions are byte offsets in both streams together.

    Attributes:
        end: The position after the last byte that was read.
        finished: Whether the program has ended and all its output was read.
    """

    def __init__(self, keep: Keep) -> None:
        """Start without streams.

        Args:
            keep: How unread output is handled.
        """
        self._keep = keep
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, ProgramStream] = {}
        self._paused = False
        self._pieces: deque[ProgramOutput] = deque()
        self._taken = 0
        self._news: asyncio.Future[None] | None = None
        self._ending: dict[int, int] | None = None
        """By stream, how many bytes are still to be read of what was printed before the program ended."""
        self.end = 0
        self.finished = False

    def follow(self, descriptor: int, stream: ProgramStream) -> None:
        """Start reading a descriptor, and take ownership of it."""
        os.set_blocking(descriptor, False)
        self._streams[descriptor] = stream
        if not self._paused:
            self._loop.add_reader(descriptor, self._read, descriptor)

    async def take(self, since: int) -> tuple[ProgramOutput, ...]:
        """Wait for output from a position on, and return it; empty when there will be no more.

        Output before the position counts as taken. The `offset` of the first piece shows whether output was dropped.
        """
        self.take_before(since)
        while not self.finished and self.end <= since:
            if self._news is None:
                self._news = self._loop.create_future()
            await asyncio.wait([self._news])
        return self.so_far(since)

    def take_before(self, position: int) -> None:
        """Mark the output before a position as taken."""
        self._taken = max(self._taken, min(position, self.end))
        self._go_on()

    def so_far(self, since: int) -> tuple[ProgramOutput, ...]:
        """Return the output from a position on, without waiting."""
        found = []
        for piece in self._pieces:
            if piece.offset + len(piece.data) > since:
                cut = max(since - piece.offset, 0)
                found.append(ProgramOutput(piece.stream, piece.data[cut:], piece.offset + cut) if cut else piece)
        return tuple(found)

    def program_ended(self) -> None:
        """Read the program's remaining output. Its other processes may hold the streams open, and print more."""
        self._ending = {descriptor: pending(descriptor) for descriptor in self._streams}
        self._check_finished()

    def close(self) -> None:
        """Stop reading, after the program's remaining output. Idempotent."""
        for descriptor in [*self._streams]:
            self._read_rest(descriptor)
            self._drop(descriptor)
        self.finished = True
        self._tell()

    def _read(self, descriptor: int) -> None:
        data = read_some(descriptor)
        if data is None:
            return
        if not data:
            self._drop(descriptor)
            self._check_finished()
            return
        if not self.finished:  # otherwise it is from a process that continues without the program
            self._add(self._streams[descriptor], data)
        if self._ending is not None and descriptor in self._ending:
            self._ending[descriptor] -= len(data)
            self._check_finished()
        if self._keep == "all" and not self.finished and self._full:
            self._pause()
        self._tell()

    def _read_rest(self, descriptor: int) -> None:
        """Read the rest of an ended program's stream, whether or not there is room, because later it is lost."""
        left = 0 if self._ending is None or self.finished else self._ending.get(descriptor, 0)
        while left > 0 and (data := read_some(descriptor)):
            self._add(self._streams[descriptor], data)
            left -= len(data)

    def _add(self, stream: ProgramStream, data: bytes) -> None:
        if self._pieces and self._pieces[-1].stream == stream and len(self._pieces[-1].data) < _SMALL:
            last = self._pieces.pop()
            self._pieces.append(ProgramOutput(stream, last.data + data, last.offset))
        else:
            self._pieces.append(ProgramOutput(stream, data, self.end))
        self.end += len(data)
        while len(self._pieces) > _PIECES or self.end - self._pieces[0].offset - len(self._pieces[0].data) >= ROOM:
            oldest = self._pieces[0]
            if self._keep == "all" and oldest.offset + len(oldest.data) > self._taken:
                return
            self._pieces.popleft()

    @property
    def _full(self) -> bool:
        """Whether the buffer of untaken output is full."""
        waiting = sum(1 for piece in self._pieces if piece.offset >= self._taken) if len(self._pieces) > _PIECES else 0
        return self.end - self._taken >= ROOM or waiting > _PIECES

    def _check_finished(self) -> None:
        if self._ending is not None and not any(left > 0 for left in self._ending.values()):
            self.finished = True
            self._go_on()
            self._tell()

    def _pause(self) -> None:
        self._paused = True
        for descriptor in self._streams:
            self._loop.remove_reader(descriptor)

    def _go_on(self) -> None:
        if self._paused and (self.finished or not self._full):
            self._paused = False
            for descriptor in self._streams:
                self._loop.add_reader(descriptor, self._read, descriptor)

    def _drop(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        del self._streams[descriptor]
        if self._ending is not None:
            self._ending.pop(descriptor, None)
        os.close(descriptor)

    def _tell(self) -> None:
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)


class Kept:
    """The beginning and the end of one stream, within a limit."""

    def __init__(self, limit: int) -> None:
        """Start empty.

        Args:
            limit: Maximum number of bytes to keep.
        """
        self._head_room = limit - limit // 2
        self._tail_room = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._in_tail = 0
        self.dropped = 0

    def add(self, data: bytes) -> None:
        if room := self._head_room - len(self._head):
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._in_tail += len(data)
        while self._in_tail > self._tail_room:
            over = self._in_tail - self._tail_room
            first = self._tail[0]
            if len(first) <= over:
                self._tail.popleft()
            else:
                self._tail[0] = first[over:]
            gone = min(len(first), over)
            self._in_tail -= gone
            self.dropped += gone

    def content(self) -> bytes:
        """Return the kept output. A line in the middle reports how much was dropped."""
        note = f"\n[cellblock: {self.dropped:,} bytes are left out here]\n".encode() if self.dropped else b""
        return bytes(self._head) + note + b"".join(self._tail)
