"""The host's end of one kernel's channel and pipes: bytes in, messages and text out, in the order they were written."""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from cellblock.errors import ProtocolError
from cellblock.host.descriptors import PIPE_READ, unread
from cellblock.host.kernels.line import Line, TapedLine
from cellblock.host.kernels.tape import CHANNEL, LONG, STDOUT, Tape
from cellblock.host.launch.launcher import Ends
from cellblock.model import StreamName
from cellblock.wire.messages import Message, ToHost, ToWorker
from cellblock.wire.protocol import Conversation, Side, State

_LAST_WORDS = 1024 * 1024
_TURN = 0.005  # seconds of one turn of the loop for the messages of one kernel
_SECONDS_BEHIND = 0.005  # until the next check whether the data that was read has been used up
_EXIT_NEWS = 0.25  # seconds from the end of the channel to news of the process


class Channel:
    """The conversation of one worker and its host. The kernel still owns the descriptors.

    Attributes:
        on_long: Called between two messages when the tape has become long.
        behind: Returns whether the data that was read has to be used up before more is read.
    """

    def __init__(
        self,
        ends: Ends,
        take: Callable[[ToHost], None],
        take_text: Callable[[StreamName, bytes], None],
        on_broken: Callable[[str], None],
        tape: Tape | None = None,
    ) -> None:
        """Prepare the channel; nothing is read before `listen`.

        Args:
            ends: The host's ends of the kernel's descriptors.
            take: Takes each message.
            take_text: Takes text from the pipes.
            on_broken: Called with the reason when the worker breaks the protocol or closes the channel.
            tape: Records everything, if the kernel should outlive this process.
        """
        self._loop = asyncio.get_running_loop()
        self._socket = ends.channel
        self._take = take
        self._take_text = take_text
        self._on_broken = on_broken
        self._conversation = Conversation(Side.HOST)
        self._tape = tape
        self._line = Line(ends) if tape is None else TapedLine(ends, tape)
        self._names: dict[int, StreamName] = {ends.stdout: "stdout", ends.stderr: "stderr"}
        self._decoders = {fd: codecs.getincrementaldecoder("utf-8")("replace") for fd in self._names}
        self._open_pipes = list(self._names)
        self._received: Iterator[Message] | None = None
        """Messages that were read and not handled yet. They come before any other read, or the order would be lost."""
        self._before: dict[int, int] = {}
        self._deaf = False
        self._ended = False
        self._replaying = False
        self._listening = self._waiting = self._waits_for_room = False
        self.on_long: Callable[[], None] = lambda: None
        self.behind: Callable[[], bool] = lambda: False

    @property
    def state(self) -> State:
        """The state of the conversation."""
        return self._conversation.state

    @property
    def all_read(self) -> bool:
        """Whether the worker has read everything that was sent to it."""
        return not self._line.sending and not unread(self._socket.fileno())

    def listen(self, listen: bool) -> None:
        """Start or stop reading; meanwhile the worker waits."""
        if self._ended:
            return
        self._listening = listen
        for descriptor, callback in self._readers():
            if listen and not self._waiting:
                self._loop.add_reader(descriptor, callback)
            else:
                self._loop.remove_reader(descriptor)

    def _wait_if_behind(self) -> None:
        """Stop reading until the data that was read has been used up."""
        if not self._waiting and self.behind():
            self._waiting = True
            self.listen(self._listening)
            self._loop.call_later(_SECONDS_BEHIND, self._look_again)

    def _look_again(self) -> None:
        if not self._ended and self.behind():
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
        """Read what is left in the pipes, then stop reading."""
        self.drain_pipes()
        self.listen(False)
        self._loop.remove_writer(self._socket.fileno())
        self._ended = True

    # -- sending -------------------------------------------------------------------------------------------------------

    def send(self, message: ToWorker) -> None:
        """Send a message, as soon as there is room for it.

        Raises:
            OSError: It could not be recorded for a later host. It was not sent.
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
            self._line.drop_sending()  # its end is about to be noticed
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
        # Text that is written from now on may follow any message that is read now.
        self._before = {descriptor: self._line.pending(descriptor) for descriptor in self._open_pipes}
        try:
            data = self._line.receive()
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
        """Handle received messages until a deadline: one read may hold thousands, and other sessions wait.

        Returns:
            Whether there are more.
        """
        if self._received is None or self._ended:
            return False
        try:
            for message in self._received:
                self._take(message)  # type: ignore[arg-type]  # the table lets nothing else in
                if self._tape is not None:
                    self._tape.taken += 1
                if time.perf_counter() >= until:
                    return True
        except ProtocolError as error:
            self._stop_hearing()
            self._on_broken(f"it broke the protocol: {error}")
        self._received = None
        self._check_length()
        self._wait_if_behind()
        return False

    def _stop_hearing(self) -> None:
        self._deaf = True
        self._loop.remove_reader(self._socket.fileno())

    def hear_out(self, wanted: Callable[[], bool], then: Callable[[], None], budget: int = _LAST_WORDS) -> None:
        """Read and handle what the worker sent before it died.

        Args:
            wanted: Returns whether its last messages are still needed.
            then: Called when all of them were handled.
            budget: Maximum bytes to read: processes that it left behind may keep writing.
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

    # -- the tape ------------------------------------------------------------------------------------------------------

    def _check_length(self) -> None:
        if self._tape is not None and self._tape.length > LONG:
            self.on_long()

    @property
    def offsets(self) -> tuple[int, int, int]:
        """Bytes of each stream that are used up, up to the last message and the last whole character."""
        assert self._tape is not None
        _, stdout, stderr = self._tape.used
        out, err = (len(decoder.getstate()[0]) for decoder in self._decoders.values())
        return self._conversation.position, stdout - out, stderr - err

    def resume(self, state: State, position: int) -> None:
        """Continue in the middle of a conversation; call `replay` next."""
        self._replaying = True
        self._conversation.resume(state, position)

    def replay(self, until: int) -> bool:
        """Handle a message again that another process has handled.

        Args:
            until: How many messages had been handled at the point to reach.

        Returns:
            Whether there was one; if not, the point is reached.

        Raises:
            ProtocolError: The worker broke the protocol.
        """
        assert self._tape is not None
        while self._tape.taken < until:
            if self._received is None:
                if not (data := self._tape.again(CHANNEL, PIPE_READ)):
                    return False
                self._received = self._conversation.messages(data)
            if (message := next(self._received, None)) is None:
                self._received = None
                continue
            self._take(message)  # type: ignore[arg-type]  # the table lets nothing else in
            self._tape.taken += 1
            return True
        return False

    def replay_sent(self, message: ToWorker) -> None:
        """Record a message that another process has sent."""
        self._conversation.send(message)

    def replay_piece(self, stream: int, count: int) -> None:
        """Read bytes of a pipe again that another process has read."""
        assert self._tape is not None
        descriptor = list(self._names)[stream - STDOUT]
        self._decode(descriptor, self._tape.again(stream, count))

    def go_live(self) -> None:
        """Handle what no host has handled yet: first from the tape, then live."""
        assert self._tape is not None
        self._replaying = False
        self._flush()
        self.listen(True)
        if self._received is not None:
            self._go_on()
        self._read_tape()

    def _read_tape(self) -> None:
        assert self._tape is not None
        if self._ended or self._deaf:
            return
        if self._received is None and self._tape.unused(CHANNEL):
            self._on_channel()
        if self._received is not None or self._tape.unused(CHANNEL):
            self._loop.call_soon(self._read_tape)
            return
        for stream, descriptor in enumerate(self._names, STDOUT):
            if self._tape.unused(stream) and descriptor in self._open_pipes:
                self._on_pipe(descriptor)

    # -- pipes ---------------------------------------------------------------------------------------------------------

    def _on_readable_pipe(self, descriptor: int) -> None:
        # Messages sent before these bytes were written come first; both can arrive between two turns of the loop.
        if not self._deaf:
            self._on_channel()
        if self._received is None and descriptor in self._open_pipes and not self._ended:
            self._on_pipe(descriptor)
            self._check_length()
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
        """Read what was in the pipes when the channel was last read."""
        self._read_pipes(self._before)
        self._before = {}

    def drain_pipes(self) -> None:
        """Read what is in the pipes now, and no more: a process may write to them without end."""
        if not self._replaying:  # the tape records what was read, and when
            self._read_pipes({descriptor: self._line.pending(descriptor) for descriptor in self._open_pipes})

    def _read_pipes(self, sizes: Mapping[int, int]) -> None:
        for descriptor, remaining in sizes.items():
            while remaining > 0 and descriptor in self._open_pipes:
                self._on_pipe(descriptor, min(remaining, PIPE_READ))
                remaining -= PIPE_READ
