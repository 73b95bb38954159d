"""Records one session's states for the next host, so that it can go back to them if this one is killed."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from cellblock.host.checkpoints.recalled import Kept, LastCell, Recalled
from cellblock.host.checkpoints.state_log import Record, StateLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.checkpoints.past import Past
    from cellblock.host.snapshots import Snapshot
    from cellblock.host.snapshots.written import Description


_MAX_OUTSIDE = 1000
"""How many outside calls a later host can name."""


class States(Protocol):
    """The states to record, at any moment."""

    @property
    def past(self) -> Past:
        """The session's history."""

    @property
    def fresh_state(self) -> int:
        """The state that its last fresh kernel began with; 0 if it has had none."""

    @property
    def first(self) -> Snapshot | None:
        """The files before the first cell of that kernel, if they were kept."""

    def all(self) -> Sequence[Checkpoint]:
        """Return its checkpoints, oldest first."""

    def describe(self, snapshot: Snapshot | None) -> Description | None:
        """Return what a later host needs to find files again."""


class StateKeeping:
    """Records changes of a session's states.

    Attributes:
        log: Where they are recorded.
        since: Start of the session's past, in seconds since the epoch.
    """

    def __init__(self, log: StateLog, states: States, recalled: Recalled | None = None, kernel: int = 0) -> None:
        """Start, or continue from an earlier host.

        Args:
            log: Where to record changes.
            states: The states to record.
            recalled: The content of the log, if an earlier host has written it.
            kernel: Otherwise: the number of its kernel, if it has one.
        """
        self.log = log
        self.since = time.time() if recalled is None else recalled.since
        self._states = states
        self._kernel = kernel if recalled is None else recalled.kernel
        self._cell = LastCell() if recalled is None else recalled.cell
        self._going: tuple[Any, ...] | None = None if recalled is None else recalled.going
        self._outside = deque([] if recalled is None else recalled.outside, _MAX_OUTSIDE)
        log.make_base = self._base
        if recalled is None:
            log.rebase()

    def write(self, word: str, *rest: Any) -> None:
        """Record an event: see `Recalled` and `Past.apply`."""
        match word:
            case "cell":
                self._cell = LastCell(*rest)
            case "not undoable":
                self._cell = self._cell._replace(not_undoable=rest[0])
            case "add":
                self._cell = self._cell._replace(added=True)
            case "lost":
                self._cell = self._cell._replace(lost=rest[0])
            case "kernel":
                (self._kernel,) = rest
            case "outside":
                self._outside.append((rest[0], rest[1]))
            case "going":
                self._going = rest
            case "stayed" | "go to" | "anew":
                self._going = None
        self.log.append(word, *rest)

    def made(self, checkpoint: Checkpoint) -> None:
        """Record a new checkpoint of the present state."""
        self.write("made", tuple(_kept(checkpoint)))

    def files(self, checkpoint: Checkpoint) -> None:
        """Record the files of a checkpoint."""
        self.write("files", checkpoint.id, self._states.describe(checkpoint.snapshot), checkpoint.without_files)

    def _base(self) -> Record:
        states, past = self._states, self._states.past
        checkpoints = [
            (tuple(_kept(one)), past.written_line(one.moment.past), states.describe(one.snapshot), one.without_files)
            for one in states.all()
        ]
        first = states.describe(states.first)
        rest = (self._kernel, self._cell, self._going, self.since, [*self._outside])
        return "base", past.saved(), checkpoints, states.fresh_state, first, *rest


def _kept(checkpoint: Checkpoint) -> Kept:
    copy, made = checkpoint.moment.copy, checkpoint.made.isoformat()
    of = (checkpoint.id, checkpoint.name, checkpoint.automatic, checkpoint.execution_count)
    return Kept(*of, made, checkpoint.at, copy.family.number, copy.number, checkpoint.moment.state)
