"""The files of states without a checkpoint, which an undo over them needs: others may have saved something before them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

from cellblock.errors import SnapshotError

if TYPE_CHECKING:
    from cellblock.host.checkpoints.files import CheckpointFiles
    from cellblock.host.kernels.cells import Cells
    from cellblock.host.snapshots import Snapshot

_MOST = 50
"""Maximum number of states whose files are kept. An undo over more of them is refused."""


class FilesBetween:
    """Keeps the files of states that have no checkpoint because the kernel could not be copied, or that had one for a while.

    Of the latter, files are kept only if others had saved something since the state before. Otherwise the history notes that
    they are not needed (`Past.is_quiet`).
    """

    def __init__(self, files: CheckpointFiles, cells: Cells) -> None:
        """Start without any.

        Args:
            files: The session's files.
            cells: Its cells, with the history.
        """
        self._files = files
        self._cells = cells
        self._kept: dict[int, Snapshot] = {}
        self._passed: tuple[int, Snapshot] | None = None
        """The last state whose checkpoint was dropped because there were too many, and its files."""

    @property
    def kept(self) -> Mapping[int, Snapshot]:
        """The files, by state."""
        return self._kept

    def hold(self, snapshot: Snapshot) -> None:
        """Keep the files of the present state, which has no checkpoint."""
        self._keep(self._cells.past.state, snapshot)

    def _keep(self, state: int, snapshot: Snapshot) -> None:
        self.drop(state)
        self._kept[state] = snapshot
        begun = {cell.begun_in for cell in self._cells.past.line}
        for other in [one for one in self._kept if one not in begun and one != state] + sorted(self._kept)[:-_MOST]:
            self.drop(other)

    def pass_by(self, state: int, snapshot: Snapshot, fresh: int, first: Snapshot | None) -> None:
        """Note what an undo of all cells needs of the files of a state whose checkpoint is dropped, as there are too many.

        Args:
            state: The state. Those before it were passed before.
            snapshot: Its files, which the caller owns.
            fresh: The state that the last fresh kernel began with.
            first: The files in that state; None if they were not kept.
        """
        before, earlier = self._passed or (fresh, first)
        if earlier is None:
            return  # an undo of all cells leaves files as they are
        past = self._cells.past
        try:
            if self._files.has_others(earlier, snapshot, past.spans_after(before)):
                self._keep(state, self._files.hold(snapshot))
            else:
                past.record_quiet(state)
            passed = state, self._files.hold(snapshot)
        except (SnapshotError, OSError):  # the disk is full, for example: then an undo over this state is refused
            return
        self._forget_passed()
        self._passed = passed

    def is_known(self, state: int) -> bool:
        """Return whether it is known what others had saved before a state, as far as that is not in its checkpoint."""
        return state in self._kept or self._cells.past.is_quiet(state)

    def drop(self, state: int) -> None:
        """Drop the files of a state, if there are any."""
        if (snapshot := self._kept.pop(state, None)) is not None:
            self._files.drop(snapshot)

    def keep_only(self, states: Container[int]) -> None:
        """Drop the files of all other states: the session has left them."""
        for state in [one for one in self._kept if one not in states]:
            self.drop(state)
        if self._passed is not None and self._passed[0] not in states:
            self._forget_passed()

    def _forget_passed(self) -> None:
        if self._passed is not None:
            self._files.drop(self._passed[1])
            self._passed = None
