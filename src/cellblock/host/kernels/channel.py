"""The host's end of one kernel's channel and pipes, and the record of what passes, for a later host.

Messages and text are handled in the order in which they were written.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from cellblock.errors import ProtocolError
from cellblock.host.descriptors import PIPE_READ, pending, read_some, unread
from cellblock.host.kernels.cell import Cell
from cellblock.host.launch.launcher import Ends
from cellblock.host.output.collect import Collector
from cellblock.model import Recovery, Status, StreamName
from cellblock.wire.messages import Command, InputRequest, Install, Message, ToHost, ToWorker
from cellblock.wire.protocol import Conversation, Side, State

Request: TypeAlias = InputRequest | Install | Command
"""A request of a running cell to the host."""

_LAST_WORDS = 1024 * 1024
_TURN = 0.005  # seconds of one event loop turn for one kernel's messages
_SECONDS_BEHIND = 0.005  # until the next check whether the received data was handled
_EXIT_NEWS = 0.25  # seconds from the end of the channel to the process's exit status


RECEIVED = 256 * 1024
"""Maximum bytes of the channel that are read at once."""

_buffer = bytearray(RECEIVED)  # shared by all kernels of the process: its content is copied out at once


class Line:
    """The byte transport of one kernel's channel and pipes. The kernel still owns the descriptors."""

    def __init__(self, ends: Ends) -> None:
        self._socket = ends.channel
        self._outgoing = bytearray()

    def queue(self, frame: bytes) -> None:
        """Queue a frame to send."""
        self._outgoing += frame

    @property
    def sending(self) -> bool:
        """Whether data is still unsent."""
        return bool(self._outgoing)

    def drop_sending(self) -> None:
        """Drop unsent data, because the socket is closed."""
        self._outgoing.clear()

    def flush(self) -> None:
        """Send as much as possible now.

        Raises:
            BlockingIOError: The socket buffer is full.
            OSError: The socket is broken.
        """
        while self._outgoing:
            del self._outgoing[: self._socket.send(self._outgoing)]

    def count(self) -> None:
        """Count a handled message."""

    def receive(self, most: int) -> bytes:
        """Read from the channel; b"" at its end.

        Args:
            most: Maximum number of bytes, if less than `RECEIVED`.

        Raises:
            BlockingIOError: There is no data now.
            OSError: The socket is broken.
        """
        return bytes(memoryview(_buffer)[: self._socket.recv_into(_buffer, min(most, RECEIVED))])

    def read_pipe(self, descriptor: int, size: int) -> bytes | None:
        """Read from a pipe; None without data, b"" at its end."""
        return read_some(descriptor, size)

    def pending(self, descriptor: int) -> int:
        """Return the number of readable bytes of the channel or a pipe."""
        return pending(descriptor)


@dataclass(frozen=True, slots=True)
class ChannelHandlers:
    """Handlers for what a channel receives.

    Attributes:
        message: Takes each message.
        text: Takes text from the pipes.
        broken: Called with the reason when the worker violates the protocol or closes the channel.
        behind: Returns whether received data must be handled before the next read.
        write_base: Makes the kernel call `Recording.base`.
    """

    message: Callable[[ToHost], None]
    text: Callable[[StreamName, bytes], None]
    broken: Callable[[str], None]
    behind: Callable[[], bool]
    write_base: Callable[[], None]


class Channel:
    """The connection between one worker and its host. The kernel still owns the descriptors."""

    def __init__(self, ends: Ends, handlers: ChannelHandlers, line: Line | None = None) -> None:
        """Prepare the channel. Reading starts with `listen`. `line` transports the bytes; by default directly."""
        self._loop = asyncio.get_running_loop()
        self._socket = ends.channel
        self._take = handlers.message
        self._take_text = handlers.text
        self._on_broken = handlers.broken
        self._conversation = Conversation(Side.HOST)
        self._behind = handlers.behind
        self._line = line or Line(ends)
        self._names: dict[int, StreamName] = {ends.stdout: "stdout", ends.stderr: "stderr"}
        self._decoders = {fd: codecs.getincrementaldecoder("utf-8")("replace") for fd in self._names}
        self._open_pipes = list(self._names)
        self._received: Iterator[Message] | None = None
        """Messages that were read and not handled yet. They come before any other read, or the order would be lost."""
        self._before: dict[int, int] = {}
        self._deaf = False
        self._ended = False
        self._listening = self._waiting = self._waits_for_room = False

    @property
    def state(self) -> State:
        """The state of the protocol."""
        return self._conversation.state

    @property
    def all_read(self) -> bool:
        """Whether the worker has read all sent data."""
        return not self._line.sending and not unread(self._socket.fileno())

    def listen(self, listen: bool) -> None:
        """Start or stop reading. The worker waits meanwhile."""
        if self._ended:
            return
        self._listening = listen
        for descriptor, callback in self._readers():
            if listen and not self._waiting:
                self._loop.add_reader(descriptor, callback)
            else:
                self._loop.remove_reader(descriptor)

    def _wait_if_behind(self) -> None:
        """Stop reading until the received data was handled."""
        if not self._waiting and self._behind():
            self._waiting = True
            self.listen(self._listening)
            self._loop.call_later(_SECONDS_BEHIND, self._look_again)

    def _look_again(self) -> None:
        if not self._ended and self._behind():
            self._loop.call_later(_SECONDS_BEHIND, self._look_again)
            return
        self._waiting = False
        self.listen(self._listening)

    def _readers(self) -> Iterator[tuple[int, Callable[[], None]]]:
        if not self._deaf:
            yield self._socket.fileno(), self._on_channel
        for descriptor in self._open_pipes:
            yield descriptor, partial(self._on_readable_pipe, descriptor)

    def end(self) -> None:
        """Read the rest of the pipes, then stop reading."""
        self.drain_pipes()
        self.listen(False)
        self._loop.remove_writer(self._socket.fileno())
        self._ended = True

    # -- sending -------------------------------------------------------------------------------------------------------

    def send(self, message: ToWorker) -> None:
        """Send a message as soon as there is room for it.

        Raises:
            OSError: The message could not be recorded for a later host, and was not sent.
        """
        before = self._conversation.state
        frame = self._conversation.send(message)
        try:
            self._line.queue(frame)
        except OSError:
            self._conversation.state = before
            raise
        self._flush()

    def _flush(self) -> None:
        try:
            self._line.flush()
        except BlockingIOError:
            self._loop.add_writer(self._socket.fileno(), self._flush)
            self._waits_for_room = True
            return
        except OSError:
            self._line.drop_sending()  # the reader is about to see the end of the channel
        if self._waits_for_room:
            self._loop.remove_writer(self._socket.fileno())
            self._waits_for_room = False

    # -- messages ------------------------------------------------------------------------------------------------------

    def _on_channel(self) -> None:
        if self._received is None and (data := self._receive()):
            self._received = self._conversation.messages(data)
            self._go_on()

    def _go_on(self) -> None:
        if self._take_received(time.perf_counter() + _TURN):
            self._loop.call_soon(self._go_on)

    def _receive(self) -> bytes:
        # First get the size of the channel's data, then of the pipes' data, and read no more of the channel than that. The
        # pipes' data then includes everything written before a message. It includes nothing written after the message, because
        # Python code waits there until the message is read.
        available = self._line.pending(self._socket.fileno())
        self._before = {descriptor: self._line.pending(descriptor) for descriptor in self._open_pipes}
        try:
            data = self._line.receive(max(available, 1))  # 1, because the channel may have ended
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self._stop_hearing()
            # Usually the process has ended, and init is about to report how.
            self._loop.call_later(_EXIT_NEWS, self._on_broken, "the code closed the kernel's channel")
        return data

    def _take_received(self, until: float) -> bool:
        """Handle received messages until a deadline. One read may contain thousands, and other sessions wait.

        Returns:
            Whether there are more.
        """
        if self._received is None or self._ended:
            return False
        try:
            for message in self._received:
                self._take(message)  # type: ignore[arg-type]  # the table lets nothing else in
                self._line.count()
                if time.perf_counter() >= until:
                    return True
        except ProtocolError as error:
            self._stop_hearing()
            self._on_broken(f"it broke the protocol: {error}")
        self._received = None
        self._has_read()
        self._wait_if_behind()
        return False

    def _has_read(self) -> None:
        """Handle a pause between two messages, after some were read and handled."""

    def _stop_hearing(self) -> None:
        self._deaf = True
        self._loop.remove_reader(self._socket.fileno())

    def hear_out(self, wanted: Callable[[], bool], then: Callable[[], None], budget: int = _LAST_WORDS) -> None:
        """Read and handle what the worker sent before it died.

        Args:
            wanted: Returns whether its last messages are still needed.
            then: Called after all of them were handled.
            budget: Maximum number of bytes to read, because orphaned processes may keep writing.
        """
        until = time.perf_counter() + _TURN
        while budget > 0 and wanted() and not self._ended:
            if self._received is None:
                budget -= (available := self._line.pending(self._socket.fileno()))
                if not available or not (data := self._receive()):
                    break
                self._received = self._conversation.messages(data)
            if self._take_received(until):
                self._loop.call_soon(self.hear_out, wanted, then, budget)
                return
        then()

    # -- pipes ---------------------------------------------------------------------------------------------------------

    def _on_readable_pipe(self, descriptor: int) -> None:
        # Messages sent before these bytes come first. Both can arrive between two turns of the loop.
        if not self._deaf:
            self._on_channel()
        if self._received is None and descriptor in self._open_pipes and not self._ended:
            self._on_pipe(descriptor)
            self._has_read()
            self._wait_if_behind()

    def _on_pipe(self, descriptor: int, size: int = PIPE_READ) -> None:
        data = self._line.read_pipe(descriptor, size)
        if data is None:
            return
        if not data:
            self._loop.remove_reader(descriptor)
            self._open_pipes.remove(descriptor)
        self._decode(descriptor, data)

    def _decode(self, descriptor: int, data: bytes) -> None:
        text = self._decoders[descriptor].decode(data, final=not data)
        if text:
            self._take_text(self._names[descriptor], text.encode())

    def catch_up(self) -> None:
        """Read what was in the pipes at the last read of the channel."""
        self._read_pipes(self._before)
        self._before = {}

    def drain_pipes(self) -> None:
        """Read what is in the pipes now and no more, because a process may write without end."""
        self._read_pipes({descriptor: self._line.pending(descriptor) for descriptor in self._open_pipes})

    def _read_pipes(self, sizes: Mapping[int, int]) -> None:
        for descriptor, remaining in sizes.items():
            while remaining > 0 and descriptor in self._open_pipes:
                self._on_pipe(descriptor, min(remaining, PIPE_READ))
                remaining -= PIPE_READ


# -- for a later host --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Extra:
    """Output from outside the kernel.

    Attributes:
        name: The stream of the text.
        text: The text.
        ours: As for `CellEvents.emit`.
        kept: Whether it is part of the result.
        shown: A displayed value instead of text.
    """

    name: StreamName = "stderr"
    text: bytes = b""
    ours: bool = False
    kept: bool = True
    shown: Mapping[str, bytes] | None = None


class Recording:
    """The recorder of one kernel's events for a later host, which records nothing without a custodian (`host/survival`).

    Attributes:
        before_exit: Records the worker's exit, before init's message about it is read.
        lasting: Whether the kernel outlives this process.
    """

    before_exit: Callable[[int], None] | None = None
    lasting = False

    def channel(self, ends: Ends, handlers: ChannelHandlers) -> Channel:
        """Return the kernel's channel."""
        return Channel(ends, handlers)

    async def held(self, timeout: float) -> None:
        """Wait until the kernel survives this process.

        Raises:
            CustodianError: The time limit in seconds was exceeded.
        """

    def base(
        self, collector: Collector, cell: Cell | None, *, after_death: Recovery | None, count: int, cells: int, more: bool
    ) -> None:
        """Write the whole state between two messages.

        Args:
            collector: The kernel's output.
            cell: The running cell, or the one about to begin.
            after_death: The recovery that its next result reports for the previous kernel, if its death is unreported.
            count: The number of its last execution.
            cells: Number of cells begun.
            more: Whether a message to the worker follows at once.

        Raises:
            OSError: There is no room.
        """

    def write_extra(self, what: Extra) -> None:
        """Record output from outside the kernel."""

    def stopping(self, reason: Status | None, means: Recovery) -> None:
        """Record how a cell is being stopped."""

    def asked(self, request: Request) -> bool:
        """Record the cell's request. Return whether another process may have handled it."""
        return False

    def begun(self) -> None:
        """Record that the handler of the cell's request is about to begin."""

    def told(self, message: ToWorker) -> None:
        """Record an answer to the cell's request."""

    def replaced(self) -> bool:
        """Record that the kernel died and is about to be replaced. Return whether that was recorded."""
        return False

    def close(self) -> None:
        """Drop the record."""


NO_RECORDING = Recording()
