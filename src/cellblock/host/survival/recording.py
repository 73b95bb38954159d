"""Records one kernel's state in its journal, and reads it back after the takeover from a killed host.

Journals are trusted, because only hosts of this user can write to them.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from cellblock.errors import CustodianError
from cellblock.host.kernels.cell import Cell
from cellblock.host.kernels.channel import Extra, Recording, Request
from cellblock.host.launch.launcher import Ends
from cellblock.host.output.collect import Collector
from cellblock.host.output.spill import SpillDirectory
from cellblock.host.survival.tape import Kind, Record, Tape
from cellblock.host.survival.taped_channel import TapedChannel
from cellblock.model import Recovery, Status, StreamName
from cellblock.wire.frames import FrameParser
from cellblock.wire.message_codec import decode
from cellblock.wire.messages import Decided, Ended, InputReply, Installed, ToHost, ToWorker
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

    def channel(
        self,
        ends: Ends,
        take: Callable[[ToHost], None],
        take_text: Callable[[StreamName, bytes], None],
        on_broken: Callable[[str], None],
        behind: Callable[[], bool],
        write_base: Callable[[], None],
    ) -> TapedChannel:
        def shorten() -> None:
            # Not if a new base would be as long.
            if self.tape.length > 2 * self._longest and not self.replaying:
                write_base()

        self.taped = TapedChannel(ends, take, take_text, on_broken, behind, self.tape, shorten)
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
