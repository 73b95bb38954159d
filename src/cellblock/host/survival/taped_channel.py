"""The channel of a kernel that outlives this process: every byte is journaled, and can be replayed."""

from __future__ import annotations

from collections.abc import Callable

from cellblock.host.descriptors import PIPE_READ, pending
from cellblock.host.kernels.channel import RECEIVED, Channel, Line
from cellblock.host.launch.launcher import Ends
from cellblock.host.survival.tape import CHANNEL, LONG, STDERR, STDOUT, Tape
from cellblock.model import StreamName
from cellblock.wire.messages import ToHost, ToWorker
from cellblock.wire.protocol import State


class TapedLine(Line):
    """A transport that journals every byte before use."""

    def __init__(self, ends: Ends, tape: Tape) -> None:
        super().__init__(ends)
        self._tape = tape
        self._streams = {ends.channel.fileno(): CHANNEL, ends.stdout: STDOUT, ends.stderr: STDERR}

    def queue(self, frame: bytes) -> None:
        self._tape.queue(frame)

    @property
    def sending(self) -> bool:
        return self._tape.sending

    def drop_sending(self) -> None:
        self._tape.drop_sending()

    def flush(self) -> None:
        self._tape.flush(self._socket.fileno())

    def count(self) -> None:
        self._tape.taken += 1

    def receive(self, most: int) -> bytes:
        return self._tape.receive(self._socket.fileno(), min(most, RECEIVED))

    def read_pipe(self, descriptor: int, size: int) -> bytes | None:
        return self._tape.read_pipe(self._streams[descriptor], descriptor, size)

    def pending(self, descriptor: int) -> int:
        return self._tape.unused(self._streams[descriptor]) + pending(descriptor)


class TapedChannel(Channel):
    """A channel whose messages another process may have begun to handle."""

    def __init__(
        self,
        ends: Ends,
        take: Callable[[ToHost], None],
        take_text: Callable[[StreamName, bytes], None],
        on_broken: Callable[[str], None],
        behind: Callable[[], bool],
        tape: Tape,
        on_long: Callable[[], None],
    ) -> None:
        """Prepare the channel. The other arguments are as for `Channel`.

        Args:
            ends: As for `Channel`.
            take: As for `Channel`.
            take_text: As for `Channel`.
            on_broken: As for `Channel`.
            behind: As for `Channel`.
            tape: The journal.
            on_long: Called between two messages when the journal has become long.
        """
        super().__init__(ends, take, take_text, on_broken, behind, TapedLine(ends, tape))
        self._tape = tape
        self._on_long = on_long
        self._replaying = False

    def _has_read(self) -> None:
        if self._tape.length > LONG:
            self._on_long()

    def drain_pipes(self) -> None:
        if not self._replaying:  # the journal records what was read, and when
            super().drain_pipes()

    @property
    def offsets(self) -> tuple[int, int, int]:
        """Handled bytes of each stream, up to the last message and the last complete character."""
        _, stdout, stderr = self._tape.used
        out, err = (len(decoder.getstate()[0]) for decoder in self._decoders.values())
        return self._conversation.position, stdout - out, stderr - err

    def resume(self, state: State, position: int) -> None:
        """Continue within a protocol state. Call `replay` next."""
        self._replaying = True
        self._conversation.resume(state, position)

    def replay(self, until: int) -> bool:
        """Replay a message that another process handled.

        Args:
            until: Number of messages handled at the point to reach.

        Returns:
            Whether there was one. If not, the point is reached.

        Raises:
            ProtocolError: The worker violated the protocol.
        """
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
        """Replay a message that another process sent."""
        self._conversation.send(message)

    def replay_piece(self, stream: int, count: int) -> None:
        """Replay bytes of a pipe that another process read."""
        descriptor = list(self._names)[stream - STDOUT]
        self._decode(descriptor, self._tape.again(stream, count))

    def go_live(self) -> None:
        """Handle what no host has handled yet: first from the journal, then live."""
        self._replaying = False
        self._flush()
        self.listen(True)
        if self._received is not None:
            self._go_on()
        self._read_tape()

    def _read_tape(self) -> None:
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
