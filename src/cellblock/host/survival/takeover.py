"""Continues one session of a killed host: reconciles its state with what that host left (`reconciling`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cellblock.errors import CellblockError
from cellblock.host.checkpoints.undoing import finish_undo
from cellblock.host.kernels.state_events import Renewed, Stayed, Went
from cellblock.host.launch.kernel_spec import DeathNotice
from cellblock.host.survival.reconciling import Steps, World, reconcile

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.checkpoints.checkpoints import Checkpoints
    from cellblock.host.kernels.cell import Cell
    from cellblock.host.kernels.family import Copy
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.kernels.session_state import SessionState
    from cellblock.host.survival.state_log import StateLog

_KERNEL_ENDED = "[cellblock] The session's kernel ended with its host."


class Takeover:
    """The takeover of one session, until it accepts cells."""

    def __init__(self, checkpoints: Checkpoints, log: StateLog, state: SessionState, copies: Mapping[str, Copy]) -> None:
        """Continue with a recorded state.

        Args:
            checkpoints: The session's checkpoints.
            log: The log of its state.
            state: The state, from that log, with this host's snapshots.
            copies: The copies of kernels by the ids of the checkpoints.
        """
        self._checkpoints = checkpoints
        log.follow(state, checkpoints.files.describe)
        checkpoints.recall(state, copies)

    @property
    def _state(self) -> SessionState:
        return self._checkpoints.past

    def _steps(self, kernel: Kernel | None, *, unrecorded: bool = False) -> Steps:
        copies = {one.id for one in self._checkpoints.all()}
        recovers = self._checkpoints.automatic.wanted
        if kernel is None:
            return reconcile(self._state, World(copies, recovers=recovers))
        return reconcile(self._state, World(copies, kernel.number, kernel.position, unrecorded, recovers))

    def take_kernel(self, kernel: Kernel, cell: Cell | None, *, unrecorded: bool) -> None:
        """Take over an earlier host's kernel.

        Args:
            kernel: The kernel.
            cell: Its running or last cell.
            unrecorded: As for `World`.
        """
        going = self._state.going
        for event in self._steps(kernel, unrecorded=unrecorded).events:
            if isinstance(event, Renewed):
                self._checkpoints.begin_anew(kernel)
                continue
            self._state.commit(event)
            if isinstance(event, Went) and going is not None:
                self._checkpoints.automatic.forget_files()
                kernel.count, kernel.of_copy = self._state.checkpoints[going.checkpoint].execution_count, True
        if cell is not None and not unrecorded:
            last = self._state.cell
            cell.not_undoable, cell.counted = last.not_undoable, last.added
            cell.says_so = bool(last.not_undoable)
            self._checkpoints.crashes.lost = last.lost
            self._checkpoints.automatic.go_on()

    @property
    def unfinished(self) -> bool:
        """Whether the earlier host was changing to another state with its files."""
        return self._steps(self._checkpoints.kernels.current).finish is not None

    async def finish(self) -> str:
        """Finish an earlier host's change of state. Return why that is not possible; empty if it is, or is not needed."""
        if (going := self._steps(self._checkpoints.kernels.current).finish) is None:
            return ""
        try:
            checkpoint = self._checkpoints.find(going.checkpoint) if going.checkpoint else None
            if checkpoint is None or going.way == "undo":
                await finish_undo(self._checkpoints, checkpoint)
            else:
                await self._checkpoints.restore_to(checkpoint, "restore")
            self._checkpoints.automatic.forget_files()
        except CellblockError as error:
            if going.checkpoint:  # else it is recorded, unless the kernel was replaced already
                self._state.commit(Stayed())
            return str(error)
        return ""

    async def recover_left(self) -> Kernel | None:
        """Create a kernel from the last state of a session whose kernel ended with its host, or None."""
        start = self._steps(None).start
        checkpoint = None if start is None else self._find(start.id)
        if checkpoint is None:
            return None
        restored = self._checkpoints.crashes.restored(checkpoint, self._state.state)
        notice = DeathNotice(f"{_KERNEL_ENDED} {restored.sentence}\n", "restored_earlier" if restored.lost else None)
        return await self._checkpoints.crashes.replace_kernel(checkpoint, restored, notice)

    def _find(self, name: str) -> Checkpoint | None:
        return next((one for one in self._checkpoints.all() if one.id == name), None)

    def settled(self) -> None:
        """End the takeover: nothing of an earlier host remains."""
        if self._checkpoints.fresh and self._state.pairs.latest is None:
            self._checkpoints.automatic.turn_ended()  # that host was killed before it had saved the files
        steps = self._steps(self._checkpoints.kernels.current)
        for event in steps.events:
            self._state.commit(event)
        for name in steps.drop:
            if (checkpoint := self._find(name)) is not None:
                checkpoint.discard()
