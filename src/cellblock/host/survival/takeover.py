"""Continues one session of a killed host: its kernel, and a pending change of state."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from cellblock.errors import CellblockError
from cellblock.host.checkpoints.checkpoint import Birth, find_checkpoint
from cellblock.host.checkpoints.undoing import finish_undo
from cellblock.host.launch.kernel_spec import DeathNotice
from cellblock.host.survival.recalled import LastCell
from cellblock.host.survival.states import StateKeeping

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoints import Checkpoints
    from cellblock.host.kernels.cell import Cell
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.survival.recalled import Going, KeptState, Recalled
    from cellblock.host.survival.state_log import StateLog

_FILES_LOST = "they could not be read when their host was replaced"
_KERNEL_ENDED = "[cellblock] The session's kernel ended with its host."


class Takeover:
    """The takeover of one session, until it accepts cells."""

    def __init__(self, checkpoints: Checkpoints, log: StateLog, recalled: Recalled) -> None:
        """Continue with the recorded states, except those whose copies have ended.

        Args:
            checkpoints: The session's checkpoints.
            log: The log of its states.
            recalled: Its states, from that log.
        """
        self._checkpoints = checkpoints
        self._recalled: Recalled | None = recalled
        checkpoints.recall(recalled.past, recalled.fresh, recalled.begun_with, recalled.outside)
        for state in recalled.states.values():
            self._add(state)
        checkpoints.recalled()
        checkpoints.keep(StateKeeping(log, checkpoints, recalled))

    def _add(self, state: KeptState) -> None:
        files, kept = self._checkpoints.files, state.kept
        if state.copy is None or state.copy.gone.done():
            if state.snapshot is not None:
                files.drop(state.snapshot)
            return
        checkpoint = self._checkpoints.add_earlier(
            state.copy,
            kept.state,
            state.past,
            born=Birth(kept.id, datetime.fromisoformat(kept.made), kept.at),
            name=kept.name,
            automatic=kept.automatic,
            execution_count=kept.execution_count,
        )
        checkpoint.without_files, checkpoint.passing = state.without_files, kept.passing
        state.copy.pending = kept.pending
        if state.snapshot is not None:
            checkpoint.hold(state.snapshot, files.drop)
        elif state.files is not None:
            checkpoint.without_files = _FILES_LOST

    def take_kernel(self, kernel: Kernel, cell: Cell | None, *, replaced: bool) -> None:
        """Take over an earlier host's kernel.

        Args:
            kernel: The kernel.
            cell: Its running or last cell.
            replaced: Whether it has just replaced another one.
        """
        recalled = self._recalled
        if recalled is None:
            return
        self._checkpoints.write("kernel", kernel.number)
        if replaced:
            self._take_replaced(kernel, recalled)
            return
        last = recalled.cell
        if last.position == kernel.position and not last.added:  # it was not sent
            self._checkpoints.past.unbegin()
            last = last.earlier or LastCell()
        if cell is not None:
            cell.not_undoable, cell.counted = last.not_undoable, last.added
            cell.says_so = bool(last.not_undoable)
            self._checkpoints.crashes.lost = last.lost
            self._checkpoints.automatic.go_on()

    def _take_replaced(self, kernel: Kernel, recalled: Recalled) -> None:
        """Take over a kernel that has just replaced another one, and do the remaining steps."""
        going, recalled.going = recalled.going, None
        if going is None or not going.checkpoint:
            if going is not None and going.way == "undo":
                past = self._checkpoints.past
                past.abandon(cell.number for cell in past.line)
            self._checkpoints.begin_anew(kernel)
        elif (state := recalled.states.get(going.checkpoint)) is not None:
            self._checkpoints.past.go_to(state.past, state.kept.state, going.began, tasks=state.kept.pending)
            if state.kept.pending:
                self._checkpoints.past.goes_on_changing()
            self._checkpoints.automatic.forget_files()
            kernel.count, kernel.of_copy = state.kept.execution_count, True

    @property
    def move(self) -> Going | None:
        """The earlier host's pending change of state with files, if any."""
        going = None if self._recalled is None else self._recalled.going
        return going if going is not None and going.way in ("undo", "restore") else None

    async def finish_going(self) -> str:
        """Finish an earlier host's pending change of state. Some files may already be restored.

        Returns:
            Why that is not possible; empty if it is, or is not needed.
        """
        if (going := self.move) is None:
            return ""
        self._recalled = None
        try:
            checkpoint = find_checkpoint(self._checkpoints.all(), going.checkpoint) if going.checkpoint else None
            if checkpoint is None or going.way == "undo":
                await finish_undo(self._checkpoints, checkpoint)
            else:
                await self._checkpoints.restore_to(checkpoint, "restore")
            self._checkpoints.automatic.forget_files()
        except CellblockError as error:
            if going.checkpoint:  # else it is recorded, unless the kernel was replaced already
                self._checkpoints.write("stayed")
            return str(error)
        return ""

    async def recover_left(self) -> Kernel | None:
        """Create a kernel from the last state of a session whose kernel ended with its host, or None."""
        recalled, self._recalled = self._recalled, None
        going = None if recalled is None else recalled.going
        if recalled is None or not self._checkpoints.automatic.wanted or (going is not None and not going.checkpoint):
            return None
        line = {cell.number for cell in self._checkpoints.past.line}
        found = [one for one in self._checkpoints.all() if one.moment.is_of(line)]
        if going is not None:
            found = [one for one in found if (one.id, "crash") == (going.checkpoint, going.way)]
        if not found:
            return None
        checkpoint = max(found, key=lambda one: (len(one.moment.past), one.moment.state))
        restored = self._checkpoints.crashes.restored(checkpoint, self._checkpoints.past.state)
        notice = DeathNotice(f"{_KERNEL_ENDED} {restored.sentence}\n", "restored_earlier" if restored.lost else None)
        return await self._checkpoints.crashes.replace_kernel(checkpoint, restored, notice)

    def settled(self) -> None:
        """End the takeover: nothing of an earlier host remains."""
        if self._recalled is not None and self._checkpoints.fresh and self._checkpoints.past.pairs.latest is None:
            self._checkpoints.automatic.turn_ended()  # that host was killed before it had saved the files
        self._recalled = None
        for one in self._checkpoints.all():
            if one.passing:
                one.discard()
