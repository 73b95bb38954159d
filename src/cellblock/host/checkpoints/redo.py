"""Data that `redo` needs to revert an undo until the next cell begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellblock.errors import CheckpointError

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.kernels.pairs import Pairs
    from cellblock.host.snapshots.snapshots import Reverted
    from cellblock.model import HistoryEntry


@dataclass
class Redo:
    """An undo that can be reverted.

    Attributes:
        checkpoint: The checkpoint of the state before the undo.
        others: The checkpoints of the states in between.
        pairs: The files before and after each change of the state, up to that state.
        since: The state to which the undo went.
        fresh: The initial state of the last fresh kernel before it, and why there were no earlier checkpoints.
        cells: The undone cells.
        begun: Number of cells begun (`Past.begun`).
        reverted: What was done to files, if anything.
    """

    checkpoint: Checkpoint
    others: list[Checkpoint]
    pairs: Pairs
    since: int
    fresh: tuple[int, str]
    cells: list[HistoryEntry]
    begun: int
    reverted: Reverted | None = None

    def drop(self) -> None:
        """Free the checkpoints and snapshots."""
        for checkpoint in (self.checkpoint, *self.others):
            checkpoint.discard()
        self.pairs.clear(0)


class Redos:
    """A stack of undos that can be reverted."""

    def __init__(self) -> None:
        self._all: list[Redo] = []

    def count(self, begun: int) -> int:
        """Return the number of undos that can be reverted after a number of begun cells. Drop the others."""
        if self._all and self._all[-1].begun != begun:
            self.drop()
        return len(self._all)

    def add(self, redo: Redo) -> None:
        self._all.append(redo)

    def last(self, begun: int) -> Redo:
        """Return the number of undos that can be reverted, given the number of begun cells. Drop the others."""
        if not self.count(begun):
            raise CheckpointError("there is no undo to reverse: redo works until the next cell begins")
        redo = self._all[-1]
        if not redo.checkpoint.alive:
            self.drop()
            raise CheckpointError("the undo cannot be reversed: the process with that state has ended, or memory was short")
        return redo

    def remove_last(self) -> None:
        """Remove the last undo, whose parts the session has taken."""
        del self._all[-1]

    def drop(self) -> bool:
        """Drop all undos. Return whether there were any."""
        dropped, self._all = self._all, []
        for redo in dropped:
            redo.drop()
        return bool(dropped)
