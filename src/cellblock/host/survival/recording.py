"""Records one kernel's state and all bytes in its journal, and reads it back after the takeover from a killed host.

Journals are trusted, because only hosts of this user can write to them.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from cellblock.errors import CustodianError
from cellblock.host.descriptors import PIPE_READ, pending
from cellblock.host.kernels.cell import Cell
from cellblock.host.kernels.channel import RECEIVED, Channel, ChannelHandlers, Extra, Line, Recording, Request
from cellblock.host.launch.launcher import Ends
from cellblock.host.output.collect import Collector
from cellblock.host.output.spill import SpillDirectory
from cellblock.host.survival.tape import CHANNEL, LONG, STDERR, STDOUT, Kind, Record, Tape
from cellblock.model import Recovery, Status
from cellblock.wire.frames import FrameParser
from cellblock.wire.message_codec import decode
from cellblock.wire.messages import Decided, Ended, InputReply, Installed, ToWorker
from cellblock.wire.protocol import State

Saved: TypeAlias = tuple[Any, ...]


@dataclass
class Standing:
    """The state of a kernel, apart from its protocol state.

    Attributes:
        cell: The running cell (`Cell.saved`), or the one about to begin.
        after_death: The recovery that its next result reports for the previous kernel, if its death is unreported.
        question: The cell's unanswered request.
        begun: Whether the request's handler began, so that it must not begin again.
        decided: Whether the cell was told that its command may run.
        count: The number of its last execution.
        collector: The output of the running cell, or since the last cell.
        cells: Number of cells begun.
    """

    cell: Saved | None = None
    after_death: Recovery | None = None
    question: Request | None = None
    begun: bool = False
    decided: bool = False
    count: int = 0
    collector: Collector | None = None
    cells: int = 0


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

    def __init__(self, ends: Ends, handlers: ChannelHandlers, tape: Tape, on_long: Callable[[], None]) -> None:
        """Prepare the channel. `on_long` is called between two messages when the journal has become long."""
        super().__init__(ends, handlers, TapedLine(ends, tape))
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


class TapeRecording(Recording):
    """A recorder in one kernel's journal.

    Attributes:
        standing: The kernel's state. The cell and collector belong to the last base that was read.
        replaying: Whether the journal is being read.
        taped: The kernel's channel.
        holding: Done when the custodian holds the kernel; None if an earlier host handed it over.
    """

    lasting = True

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.standing = Standing()
        self.replaying = False
        self.before_exit = self._exited
        self.holding: asyncio.Future[None] | None = None
        self._longest = 0
        self.taped: TapedChannel

    def channel(self, ends: Ends, handlers: ChannelHandlers) -> TapedChannel:
        def shorten() -> None:
            # Not if a new base would be as long.
            if self.tape.length > 2 * self._longest and not self.replaying:
                handlers.write_base()

        self.taped = TapedChannel(ends, handlers, self.tape, shorten)
        return self.taped

    async def held(self, timeout: float) -> None:
        if self.holding is None:
            return
        await asyncio.wait([self.holding], timeout=timeout)
        if not self.holding.done():
            raise CustodianError(f"the custodian has not answered within {timeout:g} s")
        self.holding.result()

    # -- writing -------------------------------------------------------------------------------------------------------

    def base(
        self, collector: Collector, cell: Cell | None, *, after_death: Recovery | None, count: int, cells: int, more: bool
    ) -> None:
        standing, channel = self.standing, self.taped
        standing.count, standing.cells = count, cells
        saved = None if cell is None else cell.saved()
        rest = (channel.state.value, saved, after_death, standing.question, standing.begun, standing.decided, count)
        content = pickle.dumps((*rest, None if collector.empty else collector, cells), 5)
        self._longest = len(content)
        self.tape.base(channel.offsets, content, more=more)

    def close(self) -> None:
        """Close the journal and lose its content."""
        self.tape.close()

    def write_extra(self, what: Extra) -> None:
        if not self.replaying:
            self.tape.append(Kind.EXTRA, pickle.dumps(what))

    def stopping(self, reason: Status | None, means: Recovery) -> None:
        self.tape.append(Kind.STOP, pickle.dumps((reason, means)))

    def asked(self, question: Request) -> bool:
        """Remember the request, which the journal already contains because it came from the kernel.

        Return whether this is a replay.
        """
        self.standing.question, self.standing.begun, self.standing.decided = question, False, False
        return self.replaying

    def begun(self) -> None:
        self.standing.begun = True
        self.tape.append(Kind.BEGUN, b"")

    def _exited(self, status: int) -> None:
        self.tape.append(Kind.EXITED, b"%d" % status)

    def replaced(self) -> bool:
        try:
            self.tape.append(Kind.REPLACED, b"")
        except OSError:  # no room: a later host does not learn of it
            return False
        return True

    def told(self, message: ToWorker) -> None:
        match message:
            case Decided(refusal=None) if self.standing.begun:
                self.standing.decided = True
            case InputReply() | Installed() | Decided() | Ended():
                self.standing.question = None

    # -- reading -------------------------------------------------------------------------------------------------------

    def progress(self) -> tuple[int, bool]:
        """Return how many cells an earlier host began in its kernel, and whether the kernel was about to be replaced."""
        try:
            base, records = self.tape.recover()
        except ValueError:
            return 0, False  # that host was killed before it could write anything
        _, *standing = pickle.loads(base.content)  # noqa: S301  # as in `recover`
        return Standing(*standing).cells, any(record.kind is Kind.REPLACED for record in records)

    def recover(self, spill_to: SpillDirectory | None) -> list[Record]:
        """Restore the channel and the state from the last base. Return the records after it."""
        base, records = self.tape.recover()
        state, *standing = pickle.loads(base.content)  # noqa: S301  # only hosts of this user can write to a tape
        self.standing = Standing(*standing)
        if self.standing.collector is not None:
            self.standing.collector.spill_to(spill_to)
        self.replaying = True
        self.taped.resume(State(state), base.offsets[0])
        return records


def sent_message(record: Record) -> ToWorker:
    (frame,) = FrameParser().feed(record.content)
    return decode(frame)  # type: ignore[return-value]  # written by us


def read_trusted(record: Record) -> Any:
    """Return the object in a record. Only hosts of this user can write to a journal."""
    return pickle.loads(record.content)  # noqa: S301  # see above
