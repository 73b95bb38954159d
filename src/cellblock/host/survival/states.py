"""Records one session's states for the next host, so that it can restore them if this one is killed."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from cellblock.host.checkpoints.checkpoints import CheckpointRecorder
from cellblock.host.survival.recalled import Kept, LastCell, Recalled
from cellblock.host.survival.state_log import Record, StateLog

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.checkpoints.checkpoints import Checkpoints
    from cellblock.host.snapshots import Snapshot
    from cellblock.host.snapshots.written import Description


_MAX_OUTSIDE = 1000
"""How many outside calls a later host can name."""


class StateKeeping(CheckpointRecorder):
    """A recorder of a session's state changes in its log.

    Attributes:
        recalled: Whether an earlier host recorded the session's history.
    """

    def __init__(self, log: StateLog, states: Checkpoints, recalled: Recalled | None = None, kernel: int = 0) -> None:
        """Start, or continue from an earlier host.

        Args:
            log: The log.
            states: The session's checkpoints.
            recalled: The content of the log, if an earlier host wrote it.
            kernel: Otherwise, the number of the kernel, if any.
        """
        self._log = log
        self.recalled = recalled is not None
        self._states = states
        self._kernel = kernel if recalled is None else recalled.kernel
        self._cell = LastCell() if recalled is None else recalled.cell
        self._going: tuple[Any, ...] | None = None if recalled is None else recalled.going
        self._outside = deque([] if recalled is None else recalled.outside, _MAX_OUTSIDE)
        log.make_base = self._base
        if recalled is None:
            log.rebase()

    def write(self, word: str, *rest: Any) -> None:
        self._cell = self._cell.after(word, *rest)
        match word:
            case "kernel":
                (self._kernel,) = rest
            case "outside":
                self._outside.append((rest[0], rest[1]))
            case "going":
                self._going = rest
            case "stayed" | "go to" | "anew" | "cell":
                self._going = None
        if word == "looked":
            rest = (self._described(rest[0]), rest[1])
        elif word == "go to":
            rest = (
                *rest[:3],
                [pair._replace(before=self._described(pair.before), after=self._described(pair.after)) for pair in rest[3]],
                rest[4],
            )
        self._log.append(word, *rest)

    def _described(self, files: Snapshot | None) -> Description | None:
        return self._states.files.describe(files)

    def settle(self) -> None:
        self._log.flush()

    def rewrite(self) -> None:
        self._log.rebase()

    def made(self, checkpoint: Checkpoint) -> None:
        self.write("made", tuple(_kept(checkpoint)))

    def files(self, checkpoint: Checkpoint) -> None:
        described = self._states.files.describe(checkpoint.snapshot)
        self.write("files", checkpoint.id, described, checkpoint.without_files)

    def _base(self) -> Record:
        states, past = self._states, self._states.past
        checkpoints = [
            (
                *(tuple(_kept(one)), past.written_line(one.moment.past)),
                *(states.files.describe(one.snapshot), one.without_files),
            )
            for one in states.all()
        ]
        rest = (self._kernel, self._cell, self._going, [*self._outside])
        pairs = past.pairs.copied(self._described)
        return "base", past.saved(pairs), checkpoints, states.fresh_state, states.begun_with, *rest


def _kept(checkpoint: Checkpoint) -> Kept:
    copy, made = checkpoint.moment.copy, checkpoint.made.isoformat()
    of = (checkpoint.id, checkpoint.name, checkpoint.automatic, checkpoint.execution_count)
    rest = checkpoint.moment.state, checkpoint.passing, copy.pending
    return Kept(*of, made, checkpoint.at, copy.family.number, copy.number, *rest)
