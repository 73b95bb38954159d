"""Preserves one session for the next host, and continues an earlier host's session."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from cellblock.errors import CellblockError
from cellblock.host.checkpoints.undoing import finish_redo, finish_undo
from cellblock.host.kernels.state_events import Renewed, Stayed, Went
from cellblock.host.launch.kernel_spec import DeathNotice
from cellblock.host.survival.keeper import SessionKeeper, SessionParts
from cellblock.host.survival.reconciling import Steps, World, reconcile
from cellblock.host.survival.state_log import StateLog
from cellblock.launch.custody.custodian_client import Holding

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.kernels.cell import Cell, OnInput
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.kernels.session_state import SessionState
    from cellblock.host.survival.remains import SessionRemains

_PATIENCE = 5.0  # seconds for a kernel to answer an earlier host's question
_KERNEL_ENDED = "[cellblock] The session's kernel ended with its host."


class KeptSession(SessionKeeper):
    """The keeper of a session in a host with a custodian, with a log of the session's state."""

    def __init__(self, holding: Holding, parts: SessionParts, label: str, remains: SessionRemains | None) -> None:
        super().__init__(parts)
        self._holding = holding
        self._label = label
        self._remains = remains
        self._log: StateLog | None = None
        self._takes_over = False
        """Whether an earlier host's state is being reconciled with what that host left."""
        if parts.keys is not None:
            parts.keys.watchers.add(self._keys_changed)

    def begin(self) -> None:
        if self._remains is None:
            self._write_state()
            self.relabel(self._label)

    @property
    def left_kernel(self) -> int | None:
        state = None if self._remains is None else self._remains.state
        return None if state is None else state.kernel

    @property
    def _state(self) -> SessionState:
        return self._checkpoints.past

    def _write_state(self) -> None:
        """Write the state and all later events for a later host."""
        if self._parts.wanted.kept is not None:
            kernel = self._parts.kernels.current
            self._state.kernel = 0 if kernel is None else kernel.number
            self._log = self._log or StateLog.make()
            self._log.follow(self._state, self._checkpoints.files.describe)

    # -- takeover ------------------------------------------------------------------------------------------------------

    async def go_on(self, on_input: OnInput | None) -> None:
        if (remains := self._remains) is None:
            return
        self._log, remains.log = remains.log, None
        state, remains.state = remains.state, None
        if self._log is not None and state is not None:
            self._takes_over = True
            self._log.follow(state, self._checkpoints.files.describe)
            self._checkpoints.recall(state, remains.copies)
        adopted = await self._adopt(remains, on_input)
        if not self._takes_over:
            self._checkpoints.begin_after_another()
            is_held = self._log is not None
            self._write_state()
            if not is_held:
                self.relabel(self._label)
        elif why := await self._finish(adopted):
            self._parts.cells.note(
                f"[cellblock] The session was restoring an earlier state when its host was killed, and cannot finish: {why}. "
                "Files may have the content of that state"
            )
        if adopted is not None:
            # Last, after any restore: if that kernel has died, the end of its cell starts the next one, from the state after
            # it.
            await self._parts.cells.adopt(*adopted)

    async def _adopt(self, remains: SessionRemains, on_input: OnInput | None) -> tuple[Kernel, Cell] | None:
        """Continue an earlier host's kernel, if any. Return it and its running or last cell."""
        if remains.kernel is None:
            return None
        left, remains.kernel = remains.kernel, None
        parts = self._parts
        if (recovered := await parts.recover(left, parts.wanted, on_input)) is None:
            return None
        kernel, cell = recovered
        parts.kernels.adopt(kernel)
        self._parts.listeners.settle(kernel.family.number)
        if self._takes_over:
            self._take_kernel(kernel, cell, unrecorded=remains.unrecorded)
        self.adopted, self.adopted_at = True, kernel.position
        kernel.thaw()  # that host may have been killed during a restore
        await kernel.answered(_PATIENCE)  # before the cell's end is handled, which creates a checkpoint and asks the kernel
        kernel.go_on(anyway=True)
        return None if cell is None else (kernel, cell)

    def _steps(self, *, unrecorded: bool = False) -> Steps:
        """Compare the state with the checkpoints and the kernel (`reconcile`)."""
        copies = {one.id for one in (*self._checkpoints.all(), *self._checkpoints.of_redos()) if one.alive}
        kernel = self._parts.kernels.current
        at = (0, "") if kernel is None else (kernel.number, kernel.position)
        return reconcile(self._state, World(copies, *at, unrecorded, self._checkpoints.automatic.wanted))

    def _take_kernel(self, kernel: Kernel, cell: Cell | None, *, unrecorded: bool) -> None:
        """Record what an earlier host's kernel shows, and continue its running or last cell. For `unrecorded`, see `World`."""
        going = self._state.going
        for event in self._steps(unrecorded=unrecorded).events:
            if isinstance(event, Renewed):
                self._checkpoints.begin_anew()
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

    async def _finish(self, adopted: tuple[Kernel, Cell] | None) -> str:
        """Finish an earlier host's change of state, which came after the last cell in the kernel's journal.

        Return why that is not possible; empty if it is, or is not needed.
        """
        if (going := self._steps().finish) is None:
            return ""
        if adopted is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    await adopted[1].ended.wait()
        try:
            checkpoint = self._checkpoints.find(going.checkpoint) if going.checkpoint else None
            if checkpoint is None or going.way == "undo":
                await finish_undo(self._checkpoints, checkpoint)
            elif going.way == "redo":
                await finish_redo(self._checkpoints, checkpoint, going.since)
            else:
                await self._checkpoints.restore_to(checkpoint, "restore")
            self._checkpoints.automatic.forget_files()
        except CellblockError as error:
            if going.way == "redo":  # the recorded state cannot be reached
                self._state.commit(Stayed())
                left = [cell for cell in self._state.line if cell.begun_in < going.since]
                self._state.go_to(left, going.since, going.began)
            elif going.checkpoint:  # else it is recorded, unless the kernel was replaced already
                self._state.commit(Stayed())
            return str(error)
        return ""

    async def recover_left(self) -> Kernel | None:
        start = self._steps().start if self._takes_over else None
        if start is None or (checkpoint := self._find(start.id)) is None:
            return None
        restored = self._checkpoints.crashes.restored(checkpoint, self._state.state)
        notice = DeathNotice(f"{_KERNEL_ENDED} {restored.sentence}\n", "restored_earlier" if restored.lost else None)
        return await self._checkpoints.crashes.replace_kernel(checkpoint, restored, notice)

    def _find(self, name: str) -> Checkpoint | None:
        return next((one for one in self._checkpoints.all() if one.id == name), None)

    def settled(self) -> None:
        if not self._takes_over:
            return
        self._takes_over = False
        if self._checkpoints.fresh and self._state.pairs.latest is None:
            self._checkpoints.automatic.turn_ended()  # that host was killed before it had saved the files
        steps = self._steps()
        for event in steps.events:
            self._state.commit(event)
        for name in steps.drop:
            if (checkpoint := self._find(name)) is not None:
                checkpoint.discard()

    # -- handover ------------------------------------------------------------------------------------------------------

    def relabel(self, label: str) -> None:
        self._label = label
        parts = self._parts
        if parts.cells.state != "closed":
            branch = None if parts.branch is None else [parts.branch.root, parts.branch.number]
            said = {
                "label": label,
                "number": parts.number,
                "place": parts.place,
                "env": dict(parts.env),
                "branch": branch,
            }
            fds = [] if self._log is None else [self._log.fd]
            if parts.keys is None:
                self._holding.hold(said, fds)
                return
            held = parts.keys.hold()
            try:
                self._holding.hold({**said, "keys": True}, [*fds, held])
            finally:
                os.close(held)

    def _keys_changed(self) -> None:
        if self._log is not None:  # else the session has not begun here, or nothing outlives this process
            self.relabel(self._label)

    def end(self) -> None:
        if self._parts.keys is not None:
            self._parts.keys.watchers.discard(self._keys_changed)
        self._holding.release()
        self._parts.listeners.release()
        if self._log is not None:
            self._log.close()
            self._log = None
