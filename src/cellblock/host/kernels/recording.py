"""Records one kernel's state on its tape, and reads it back after taking the kernel over from a killed host.

The content of tapes is trusted: only hosts of this user can write to them.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from cellblock.host.kernels.channel import Channel
from cellblock.host.kernels.tape import Kind, Record, Tape
from cellblock.host.output.collect import Collector
from cellblock.host.output.spill import SpillDirectory
from cellblock.model import Recovery, Status, StreamName
from cellblock.wire.frames import FrameParser
from cellblock.wire.message_codec import decode
from cellblock.wire.messages import Command, Decided, Ended, InputReply, InputRequest, Install, Installed, Message, ToWorker
from cellblock.wire.protocol import State

Saved: TypeAlias = tuple[Any, ...]
Question: TypeAlias = InputRequest | Install | Command


@dataclass
class Standing:
    """The state of a kernel, apart from its conversation.

    Attributes:
        cell: The running cell (`Cell.saved`), or the one that is about to begin.
        after_death: The recovery that its next result reports for the previous kernel, if that death was not reported yet.
        question: The cell's request that was not answered yet.
        begun: Whether handling the request has begun, so that it must not begin again.
        decided: Whether the cell was told that its command may run.
        count: The number of its last execution.
        collector: Its output since the last cell ended, or of the running one.
        cells: How many cells it has begun.
    """

    cell: Saved | None = None
    after_death: Recovery | None = None
    question: Question | None = None
    begun: bool = False
    decided: bool = False
    count: int = 0
    collector: Collector | None = None
    cells: int = 0


class Recording:
    """The tape of one kernel, as its host uses it.

    Attributes:
        standing: The kernel's state. Cell and collector are those of the last base that was read.
        replaying: Whether the tape is being read.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.standing = Standing()
        self.replaying = False
        self._longest = 0

    # -- writing -------------------------------------------------------------------------------------------------------

    def base(
        self, channel: Channel, collector: Collector, cell: Saved | None, *, after_death: Recovery | None, more: bool
    ) -> None:
        """Write the whole state, between two messages.

        Args:
            channel: The kernel's channel.
            collector: Its output.
            cell: The running cell, or the one that is about to begin.
            after_death: As in `Standing`.
            more: Whether a message to the worker follows at once.
        """
        standing = self.standing
        rest = (channel.state.value, cell, after_death, standing.question, standing.begun, standing.decided, standing.count)
        content = pickle.dumps((*rest, None if collector.empty else collector, standing.cells), 5)
        self._longest = len(content)
        self.tape.base(channel.offsets, content, more=more)

    def close(self) -> None:
        """Close the tape. Its content is lost."""
        self.tape.close()

    @property
    def long(self) -> bool:
        """Whether the tape since the last base is longer than a new base would be."""
        return self.tape.length > 2 * self._longest

    def write_extra(self, what: Extra) -> None:
        """Record output that does not come from the kernel."""
        if not self.replaying:
            self.tape.append(Kind.EXTRA, pickle.dumps(what))

    def stopping(self, reason: Status | None, means: Recovery) -> None:
        """Record how a cell is being stopped."""
        self.tape.append(Kind.STOP, pickle.dumps((reason, means)))

    def asked(self, question: Question) -> None:
        """Remember the cell's request. It came from the kernel, so it is on the tape already."""
        self.standing.question, self.standing.begun, self.standing.decided = question, False, False

    def begun(self) -> None:
        """Record that handling the cell's request is about to begin."""
        self.standing.begun = True
        self.tape.append(Kind.BEGUN, b"")

    def exited(self, status: int) -> None:
        """Record how the worker has exited."""
        self.tape.append(Kind.EXITED, b"%d" % status)

    def followed(self) -> None:
        """Record that it has died, and that another kernel is about to replace it."""
        self.tape.append(Kind.FOLLOWED, b"")

    def told(self, message: Message) -> None:
        """Update the standing after a message to the kernel."""
        match message:
            case Decided(refusal=None) if self.standing.begun:
                self.standing.decided = True
            case InputReply() | Installed() | Decided() | Ended():
                self.standing.question = None

    # -- reading -------------------------------------------------------------------------------------------------------

    def stood(self) -> tuple[int, bool]:
        """Return how many cells another host has begun in its kernel, and whether it was about to be replaced."""
        try:
            base, records = self.tape.recover()
        except ValueError:
            return 0, False  # that host was killed before it could write anything
        return Standing(*pickle.loads(base.content)[1:]).cells, any(  # noqa: S301  # as in `recover`
            record.kind is Kind.FOLLOWED for record in records
        )

    def recover(self, channel: Channel, spill_to: SpillDirectory | None) -> list[Record]:
        """Put the channel and the standing back to the last base; return the records after it."""
        base, records = self.tape.recover()
        state, *standing = pickle.loads(base.content)  # noqa: S301  # only hosts of this user can write to a tape
        self.standing = Standing(*standing)
        if self.standing.collector is not None:
            self.standing.collector.spill_to(spill_to)
        self.replaying = True
        channel.resume(State(state), base.offsets[0])
        return records


@dataclass(frozen=True)
class Extra:
    """Output that does not come from the kernel.

    Attributes:
        name: The stream of the text.
        text: The text.
        ours: As for `CellEvents.emit`.
        kept: Whether it is part of the result.
        shown: A displayed value instead.
    """

    name: StreamName = "stderr"
    text: bytes = b""
    ours: bool = False
    kept: bool = True
    shown: Mapping[str, bytes] | None = None


def sent_message(record: Record) -> ToWorker:
    """Return the message in a `SENT` record."""
    (frame,) = FrameParser().feed(record.content)
    return decode(frame)  # type: ignore[return-value]  # written by us


def read_trusted(record: Record) -> Any:
    """Return the object in a record. Only hosts of this user can write to a tape."""
    return pickle.loads(record.content)  # noqa: S301  # see above
