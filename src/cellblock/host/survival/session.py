"""Keeps one session for the next host, and continues one that an earlier host has left."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from cellblock.host.survival.keeper import SessionKeeper, SessionParts
from cellblock.host.survival.state_log import StateLog
from cellblock.host.survival.states import StateKeeping
from cellblock.host.survival.takeover import Takeover
from cellblock.launch.custody.client import Holding

if TYPE_CHECKING:
    from cellblock.host.kernels.cell import Cell, OnInput
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.survival.remains import SessionRemains

_PATIENCE = 5.0  # seconds for a kernel to answer an earlier host's question


class KeptSession(SessionKeeper):
    """Makes the custodian hold a session, with a log of its states."""

    def __init__(self, holding: Holding, parts: SessionParts, label: str, remains: SessionRemains | None) -> None:
        """Prepare; see `Keeper.session`.

        Args:
            holding: Has the session held.
            parts: As for `Keeper.session`.
            label: As for `Keeper.session`.
            remains: As for `Keeper.session`.
        """
        self._holding = holding
        self._parts = parts
        self._label = label
        self._remains = remains
        self._log: StateLog | None = None
        self._takeover: Takeover | None = None

    def begin(self) -> None:
        """See `SessionKeeper`."""
        if self._remains is None:
            self._write_states()
            self.relabel(self._label)

    def _write_states(self) -> None:
        """Record all further events for a later host."""
        if self._parts.wanted.kept is not None:
            self._log = StateLog.make()
            self._record_to(self._log)

    def _record_to(self, log: StateLog) -> None:
        kernel = self._parts.kernels.current
        checkpoints = self._parts.checkpoints
        checkpoints.keep(StateKeeping(log, checkpoints, kernel=0 if kernel is None else kernel.number))

    async def go_on(self, on_input: OnInput | None) -> None:
        """See `SessionKeeper`."""
        if self._remains is None:
            return
        log, recalled = self._remains.log, self._remains.recalled
        self._remains.log = self._remains.recalled = None
        self._log = log
        if log is not None and recalled is not None:
            self._takeover = Takeover(self._parts.checkpoints, log, recalled)
        adopted = await self._adopt(self._remains, on_input)
        if self._takeover is None:
            self._parts.checkpoints.begin_after_another()
            if log is None:
                self._write_states()
                self.relabel(self._label)
            else:
                self._record_to(log)
        elif why := await self._finish_going(self._takeover, adopted):
            self._parts.note(
                f"[cellblock] The session was going back to an earlier state when its host was killed, and cannot: {why}. "
                "Files may be those of that state"
            )
        if adopted is not None:
            # Last, after any move: if that kernel has died, the end of its cell starts the next one, from the state after it.
            await self._parts.cells.adopt(*adopted)

    @staticmethod
    async def _finish_going(takeover: Takeover, adopted: tuple[Kernel, Cell] | None) -> str:
        """See `Takeover.finish_going`. A move that has begun has come after the last cell, whose end is on the tape."""
        if adopted is not None and takeover.move is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    await adopted[1].ended.wait()
        return await takeover.finish_going()

    async def _adopt(self, remains: SessionRemains, on_input: OnInput | None) -> tuple[Kernel, Cell] | None:
        """Continue the kernel of an earlier host, if there is one; return it and the cell that runs in it, or was its last."""
        if remains.kernel is None:
            return None
        left, remains.kernel = remains.kernel, None
        parts = self._parts
        if (recovered := await parts.recover(left, parts.wanted, on_input)) is None:
            return None
        kernel, cell = recovered
        parts.kernels.adopt(kernel)
        parts.checkpoints.resuming.serving = kernel.family
        if self._takeover is not None:
            self._takeover.take_kernel(kernel, cell, replaced=remains.replaced)
        self.adopted, self.adopted_at = True, kernel.position
        kernel.thaw()  # that host may have been killed on the way to another state
        await kernel.answered(_PATIENCE)  # before the cell's end is handled: that makes a checkpoint, which asks the kernel
        kernel.go_on(anyway=True)
        return None if cell is None else (kernel, cell)

    async def recover_left(self) -> Kernel | None:
        """See `SessionKeeper`."""
        return None if self._takeover is None else await self._takeover.recover_left()

    def settled(self) -> None:
        """See `SessionKeeper`."""
        if self._takeover is not None:
            self._takeover.settled()
            self._takeover = None

    def relabel(self, label: str) -> None:
        """See `SessionKeeper`."""
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
            self._holding.hold(said, [] if self._log is None else [self._log.fd])

    def end(self) -> None:
        """See `SessionKeeper`."""
        self._holding.release()
        if self._log is not None:
            self._log.close()
            self._log = None
