"""Preserves one session for the next host, and continues an earlier host's session."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from cellblock.host.survival.keeper import SessionKeeper, SessionParts
from cellblock.host.survival.state_log import StateLog
from cellblock.host.survival.takeover import Takeover
from cellblock.launch.custody.custodian_client import Holding

if TYPE_CHECKING:
    from cellblock.host.kernels.cell import Cell, OnInput
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.survival.remains import SessionRemains

_PATIENCE = 5.0  # seconds for a kernel to answer an earlier host's question


class KeptSession(SessionKeeper):
    """The keeper of a session in a host with a custodian, with a log of the session's states."""

    def __init__(
        self,
        holding: Holding,
        listeners: Sequence[Holding],
        parts: SessionParts,
        label: str,
        remains: SessionRemains | None,
    ) -> None:
        """Store the arguments.

        Args:
            holding: Hands the session to the custodian.
            listeners: Hold the session's listeners.
            parts: As for `Keeper.session`.
            label: As for `Keeper.session`.
            remains: As for `Keeper.session`.
        """
        self._holding = holding
        self._listeners = listeners
        self._parts = parts
        self._label = label
        self._remains = remains
        self._log: StateLog | None = None
        self._takeover: Takeover | None = None
        if parts.keys is not None:
            parts.keys.watchers.add(self._keys_changed)

    def begin(self) -> None:
        if self._remains is None:
            self._write_states()
            self.relabel(self._label)

    def _write_states(self) -> None:
        """Record all later events for a later host."""
        if self._parts.wanted.kept is not None:
            self._log = StateLog.make()
            self._record_to(self._log)

    def _record_to(self, log: StateLog) -> None:
        state, kernel = self._parts.checkpoints.past, self._parts.kernels.current
        state.kernel = 0 if kernel is None else kernel.number
        log.follow(state, self._parts.checkpoints.files.describe)

    async def go_on(self, on_input: OnInput | None) -> None:
        if self._remains is None:
            return
        log, state = self._remains.log, self._remains.state
        self._remains.log = self._remains.state = None
        self._log = log
        if log is not None and state is not None:
            self._takeover = Takeover(self._parts.checkpoints, log, state, self._remains.copies)
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
                f"[cellblock] The session was restoring an earlier state when its host was killed, and cannot finish: {why}. "
                "Files may have the content of that state"
            )
        if adopted is not None:
            # Last, after any restore: if that kernel has died, the end of its cell starts the next one, from the state after
            # it.
            await self._parts.cells.adopt(*adopted)

    @staticmethod
    async def _finish_going(takeover: Takeover, adopted: tuple[Kernel, Cell] | None) -> str:
        """Finish a pending change of state (`Takeover.finish`), which came after the last cell in the journal."""
        if adopted is not None and takeover.unfinished:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    await adopted[1].ended.wait()
        return await takeover.finish()

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
        parts.checkpoints.resuming.serving = kernel.family
        if self._takeover is not None:
            self._takeover.take_kernel(kernel, cell, unrecorded=remains.unrecorded)
        self.adopted, self.adopted_at = True, kernel.position
        kernel.thaw()  # that host may have been killed during a restore
        await kernel.answered(_PATIENCE)  # before the cell's end is handled, which creates a checkpoint and asks the kernel
        kernel.go_on(anyway=True)
        return None if cell is None else (kernel, cell)

    async def recover_left(self) -> Kernel | None:
        return None if self._takeover is None else await self._takeover.recover_left()

    def settled(self) -> None:
        if self._takeover is not None:
            self._takeover.settled()
            self._takeover = None

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
        for listener in self._listeners:
            listener.release()
        if self._log is not None:
            self._log.close()
            self._log = None
