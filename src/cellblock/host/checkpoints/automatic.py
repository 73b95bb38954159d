"""The checkpoints that a session makes by itself, while it waits for its next cell, and the files that belong to them."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Protocol

from cellblock.errors import CheckpointError, KernelDiedError
from cellblock.host.checkpoints.filing import Filing
from cellblock.wire.protocol import State

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.checkpoints.files import CheckpointFiles
    from cellblock.host.checkpoints.rolling import Budget, Rolling
    from cellblock.host.kernels.cells import Cells
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.kernels.kernel_slot import KernelSlot
    from cellblock.snapshots import Snapshot

_log = logging.getLogger("cellblock.sessions")


class CheckpointList(Protocol):
    """All checkpoints of the session, automatic or not."""

    files: CheckpointFiles

    def all(self) -> list[Checkpoint]:
        """Return those that can be gone back to, oldest first."""

    async def copy(self, kernel: Kernel, *, name: str = "", automatic: bool) -> Checkpoint:
        """Make a checkpoint of a kernel, while no cell can run."""


class AutomaticCheckpoints:
    """Makes a checkpoint of one session each time it is idle for a moment, and drops the oldest.

    Attributes:
        skipped: Why the last one was not made; empty if it was.
        filing: Keeps the files that belong to them.
    """

    def __init__(
        self, name: str, every: CheckpointList, budget: Budget, cells: Cells, kernels: KernelSlot, rolling: Rolling | None
    ) -> None:
        """Begin without checkpoints.

        Args:
            name: What messages call the session.
            every: The session's checkpoints.
            budget: What all sessions of the host may make and keep.
            cells: What runs in the session.
            kernels: Where that runs.
            rolling: When checkpoints are made, and how many are kept; None: none are made.
        """
        self._name = name
        self._every = every
        self._budget = budget
        self._cells = cells
        self._kernels = kernels
        self._rolling = rolling
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.skipped = ""
        self.filing = Filing(every.files)
        cells.on_begin = self.stop_waiting
        cells.on_idle = self.wait_for_idle
        kernels.relieve = self.relieve

    @property
    def wanted(self) -> bool:
        """Whether they are made."""
        return self._rolling is not None

    def all(self) -> list[Checkpoint]:
        """Return them, oldest first."""
        return [checkpoint for checkpoint in self._every.all() if checkpoint.automatic]

    def present(self) -> Checkpoint | None:
        """Return the one of the session's present state, if there is one."""
        return next((one for one in self.all() if one.moment.state == self._cells.past.state), None)

    # -- making --------------------------------------------------------------------------------------------------------

    def stop_waiting(self) -> None:
        """Take note that something begins in the session, or that it ends."""
        self.filing.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wait_for_idle(self) -> None:
        """Make one if nothing begins for a moment."""
        self.stop_waiting()
        if self._rolling is not None:
            self._timer = asyncio.get_running_loop().call_later(self._rolling.after, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._rolling is None or not (self._task is None or self._task.done()):
            return
        if wait := self._budget.ask():
            self._timer = asyncio.get_running_loop().call_later(wait, self._begin)
        else:
            self._task = asyncio.create_task(self._make(self._rolling))

    async def _make(self, rolling: Rolling) -> None:
        """Make a checkpoint while nobody waits for the session. If there is one of this state, only keep its files."""
        if self._cells.busy or self._cells.state != "running":
            return
        if (made := self.present()) is not None:
            self.skipped = ""
            if made.snapshot is None:
                self.keep_files(made)
            return
        async with self._cells.turn():
            kernel = self._kernels.current
            if kernel is None or kernel.death is not None or kernel.state is not State.IDLE:
                return
            began = time.perf_counter()
            try:
                checkpoint = await self._every.copy(kernel, automatic=True)
                self.skipped = ""
            except (CheckpointError, KernelDiedError, OSError) as error:
                self.skipped = str(error)
                return
            if (took := time.perf_counter() - began) > rolling.longest:
                self._rolling = None
                self.skipped = f"the last one took {took:.2g} s, and no more than {rolling.longest:g} s are allowed"
                _log.info("%s: no more automatic checkpoints: %s", self._name, self.skipped)
        self._drop_oldest(rolling.keep)
        self._budget.spend(checkpoint)
        self.keep_files(checkpoint)

    # -- their files ---------------------------------------------------------------------------------------------------

    def keep_files(self, checkpoint: Checkpoint) -> None:
        """Begin to keep the session's present files for a checkpoint of its present state."""

        def hold(files: Snapshot) -> None:
            self._cells.past.rest(checkpoint.moment.state)
            if checkpoint.alive:
                checkpoint.let_go()
                checkpoint.hold(files, self._every.files.drop)
            else:
                self._every.files.drop(files)

        def miss(reason: str) -> None:
            checkpoint.without_files = reason

        self.filing.begin(hold, miss)

    def forget_files(self) -> None:
        """Drop the files that were kept for the present state: the workspace has changed. They are kept again later."""
        if (made := self.present()) is not None:
            made.let_go()

    def files_changed(self) -> None:
        """Take note that somebody else has changed the session's files. No undo takes such a change back."""
        if self._cells.busy or self._rolling is None or self._cells.state != "running":
            return
        self.forget_files()
        if self._cells.past.line or self.present() is not None:
            self.wait_for_idle()
        else:
            self.filing.stop()
            self.filing.begin_first()

    # -- dropping ------------------------------------------------------------------------------------------------------

    def gone_to(self, checkpoint: Checkpoint) -> None:
        """Take note that the session has gone back to a checkpoint: what was made since is of a state that was left."""
        if self.present() is not checkpoint:
            self.forget_files()
        line = checkpoint.moment.numbers
        for other in self.all():
            if not other.moment.numbers <= line:
                other.discard()

    def begin_anew(self) -> None:
        """Take note of a fresh kernel."""
        if self._rolling is not None:
            self.skipped = ""
            self.filing.begin_first()
        self._drop_oldest(0)

    def relieve(self) -> bool:
        """Drop the oldest, as there is too little memory; return whether there was one."""
        automatic = self.all()
        if automatic:
            automatic[0].discard()
        return bool(automatic)

    def _drop_oldest(self, keep: int) -> None:
        automatic = self.all()
        for checkpoint in automatic[: max(len(automatic) - keep, 0)]:
            checkpoint.discard()

    async def close(self) -> None:
        """Drop them and their files, before the session ends. It can be repeated."""
        self.stop_waiting()
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        await self.filing.close()
        self._drop_oldest(0)
