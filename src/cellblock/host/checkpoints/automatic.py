"""Automatic checkpoints of a session, created after each cell or while idle, and recovery from them after a crash."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import time
from collections.abc import Container
from dataclasses import replace
from typing import TYPE_CHECKING

from cellblock.common import telemetry
from cellblock.errors import BusyError, CheckpointError, KernelDiedError, LaunchError, SnapshotError
from cellblock.host.checkpoints.filing import Filing
from cellblock.host.kernels.cells import CellObserver
from cellblock.host.kernels.exit_status import Restored
from cellblock.host.kernels.kernel_slot import KernelObserver, KernelSlot
from cellblock.host.kernels.state_events import Placed
from cellblock.host.options import Exact, Rolling
from cellblock.wire.protocol import State

if TYPE_CHECKING:
    from cellblock.host.checkpoints.budget import Budget
    from cellblock.host.checkpoints.checkpoint import Checkpoint, CheckpointList, Resuming
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.kernels.pairs import Pair
    from cellblock.host.kernels.session_state import SessionState
    from cellblock.host.launch.kernel_spec import DeathNotice
    from cellblock.host.snapshots import Snapshot

_ENDED = "the process with the checkpoint has ended, or memory was short"
_MOST_REASONS = 100
_AUTOMATIC = (("cellblock.operation", "automatic"),)
_RECOVERING = 5.0
"""Seconds after which no further checkpoint is tried after a crash: a copy that does not answer takes a minute."""

_log = logging.getLogger("cellblock.sessions")


class AutomaticCheckpoints(CellObserver, KernelObserver):
    """Creates the checkpoints of one session, and drops the oldest. Observes the session's cells and kernels.

    An exact session creates a checkpoint with files at the end of each cell, before the next request. If the cell left tasks
    running, it creates another before the next request. A rolling session creates checkpoints while idle, first of memory,
    then of files; the next cell cancels them.

    Attributes:
        skipped: Why the last checkpoint failed; empty if it succeeded.
        filing: Takes the file snapshots.
        crashes: Replaces dead kernels from checkpoints.
    """

    def __init__(
        self,
        name: str,
        every: CheckpointList,
        resuming: Resuming,
        budget: Budget,
        kernels: KernelSlot,
        kind: Exact | Rolling | None,
    ) -> None:
        self._name = name
        self._every = every
        self._budget = budget
        self._cells = every.cells
        self._kernels = kernels
        self._kind = kind
        """When to create checkpoints, and how many to keep; None to create none."""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._outdated = False
        self._base: Checkpoint | None = None
        """The checkpoint of the state before the running cell."""
        self._before: Snapshot | None = None
        """The files before the running cell."""
        self._writable = True
        """Whether the workspace was writable then."""
        self.skipped = ""
        self._reasons: dict[int, str] = {}
        """The last states without a checkpoint, each with the reason."""
        self._last = 0
        """The state of the last one made."""
        self.filing = Filing(every.files)
        self.crashes = Crashes(name, every, self, resuming)
        self.take_past()
        self._cells.observe(self)
        kernels.observe(self)

    def take_past(self) -> None:
        """Take ownership of the snapshots in the session's history, possibly an earlier host's."""
        self._cells.past.pairs.release = self._every.files.drop

    @property
    def wanted(self) -> bool:
        """Whether automatic checkpoints are on."""
        return self._kind is not None

    @property
    def exact(self) -> int:
        """The number of cells that can be undone exactly; 0 without exact undo."""
        return self._kind.keep if isinstance(self._kind, Exact) else 0

    def all(self) -> list[Checkpoint]:
        """Return the automatic checkpoints, oldest state first. Some may come from an adopted branch."""
        return sorted((one for one in self._every.all() if one.automatic), key=lambda one: one.moment.state)

    def present(self) -> Checkpoint | None:
        """Return the current state's checkpoint, if there is one."""
        return next((one for one in self.all() if one.moment.state == self._cells.past.state), None)

    def before_cell(self) -> str:
        """Handle the start of a cell. For an exact session, return why the cell cannot be undone."""
        self._before = self._base = None
        if not isinstance(self._kind, Exact):
            return ""
        made = self._base = self.present()
        if made is None and not self._every.fresh:
            return self.why_none(self._cells.past.state) or self.skipped or "it began before a checkpoint was made"
        self._before = self._cells.past.pairs.latest
        self._writable = self._every.files.writable
        if self._before is not None or self._every.files.too_many:  # without files, `undo` checks whether they changed
            return ""
        return (self.filing.skipped if made is None else made.without_files) or "it began before the files were saved"

    def why_none(self, state: int) -> str:
        """Return why a state has no checkpoint; empty if unknown."""
        return self._reasons.get(state, _ENDED if state == self._last else "")

    async def after_cell(self, state: int) -> str:
        """Return why the last cell cannot be undone; empty if it can, or if that was known before it began in this state."""
        if self._base is not None and not self._base.alive:
            return "the process with the checkpoint before it was killed while the cell ran, or memory was short"
        if self._before is None:
            return ""
        files, pairs = self._every.files, self._cells.past.pairs.after(state) or ()
        if self._writable and not files.writable:
            return "it made the workspace read-only"
        try:
            spans = [times for pair in pairs for span in pair.spans for times in span.times()]
            return await files.looks_undoable(self._before, spans)
        except SnapshotError as error:
            return str(error)

    def pairs_of_branch(self, history: SessionState, state: int) -> list[Pair]:
        """Return the file pairs from the start of a branch to one of its states; empty if this is not a branch."""
        past = self._cells.past
        if history is past or not (history.pairs.origin < past.pairs.origin or past.pairs.knows(history.pairs.origin)):
            return []
        pairs = replace(history.pairs, pairs=[pair for pair in history.pairs.pairs if pair.state <= state], latest=None)
        return pairs.copied(self._every.files.hold).pairs

    def go_on(self) -> None:
        """Continue with an earlier host's cell, which began in the previous state."""
        before = self._cells.past.before
        self._base = next((one for one in self.all() if one.moment.state == before), None)
        pairs = self._cells.past.pairs.pairs
        self._before = pairs[-1].before if pairs else None

    def can_recover(self, dead: Kernel) -> bool:
        """Return whether the session may be able to continue from a state of a dead kernel."""
        return self.crashes.last_state(dead) is not None

    def awaited(self, dead: Kernel) -> Restored | None:
        return self.crashes.awaited(dead)

    def kernel_put(self, kernel: Kernel) -> None:
        """Record the session's current kernel."""
        self._cells.past.commit(Placed(kernel.number))

    # -- when ----------------------------------------------------------------------------------------------------------

    def turn_ended(self) -> None:
        """Handle the end of a cell or request: the session's state or files have changed."""
        if self._cells.current is not None:
            return  # the session continues an earlier host's cell, which ends later
        self.request_begins()
        if self._kind is not None:
            self._cells.past.rest(self._cells.past.state)
        if isinstance(self._kind, Exact):
            self._keep_now()
        elif self._kind is not None:
            self._timer = asyncio.get_running_loop().call_later(self._kind.after, self._begin_rolling)

    def request_begins(self) -> None:
        """Cancel the wait for an idle moment: a request begins, or the session ends."""
        if isinstance(self._kind, Exact):
            return
        self.filing.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def turn_begins(self) -> None:
        """Wait at the start of a request until an exact session's previous state and files are saved."""
        await self._wait_awaited()
        # External changes, or tasks, have changed something since the last cell. A refused copy is not retried: the retry
        # would be refused too, and may take half a second.
        if isinstance(self._kind, Exact) and ((self._moved_on and not self.skipped) or self._every.files.touched()):
            self._keep_now()
            await self._wait_awaited()
        elif isinstance(self._kind, Rolling) and self._cells.past.pairs.latest is not None and self._every.files.touched():
            # Files only: external changes after the snapshot are not the next cell's.
            self._cells.past.look(await self.filing.now())

    def turn_left(self) -> None:
        """Resume the code's tasks, paused since the turn began, unless a request was sent or a checkpoint is in progress."""
        if not isinstance(self._kind, Exact) or self._task is None or self._task.done():
            self._kernels.go_on()

    @property
    def _moved_on(self) -> bool:
        """Whether tasks may have changed the current state since its checkpoint."""
        kernel = self._kernels.current
        return self._cells.past.changing and kernel is not None and kernel.fit and not kernel.paused

    async def _wait_awaited(self) -> None:
        while isinstance(self._kind, Exact) and self._task is not None and not self._task.done():
            self.filing.awaited += 1
            try:
                await asyncio.wait([self._task])
            finally:
                self.filing.awaited -= 1

    async def made(self) -> None:
        """Wait for the checkpoint in progress, if any, and its files, while nothing else waits for the session."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        made = self.present() if isinstance(self._kind, Rolling) and not self._cells.busy else None
        if made is not None and made.snapshot is None:
            self.filing.stop()
            self.keep_files(made)
        await self.filing.hasten()

    # -- at once -------------------------------------------------------------------------------------------------------

    def _keep_now(self) -> None:
        """Save the current state, again if it has changed since the copy in progress."""
        self._outdated = True
        if self._cells.state == "running" and self._cells.current is None and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._keep_all())

    async def _keep_all(self) -> None:
        try:
            await self._keep_present()
        finally:
            if not self.filing.awaited:  # otherwise a request follows
                self._kernels.go_on()

    async def _keep_present(self) -> None:
        while self._outdated and self._cells.state == "running":
            self._outdated = False
            # The files are examined at once, while the kernel forks, as what others change later is not the cell's; and again
            # if tasks may have changed files meanwhile.
            again, before, state, rested = self._moved_on, self.present(), self._cells.past.state, False
            files = None if again else self.filing.keep()
            if again and before is None:
                again = False
                self._cells.past.begin()
            checkpoint = None if again else before
            if checkpoint is None and not self._every.fresh:
                checkpoint = await self._copy(again=again)
                if checkpoint is None and again and self.skipped and self._cells.past.state == state:
                    self._cells.past.begin()  # no cell may count as begun in the last cell's state
                elif checkpoint is None and again and not self.skipped:
                    checkpoint, rested = before, True  # nothing ran
                ran = checkpoint is not None and checkpoint is not before and checkpoint.moment.copy.ran
                if ran:
                    self._cells.past.rest_later()
                if checkpoint is not None and (checkpoint.moment.copy.pending or ran) and files is not None:
                    if (snapshot := await self.filing.result(files)) is not None:
                        self._every.files.drop(snapshot)
                    files = None
            await self._keep_files(files or self.filing.keep(), checkpoint, rested)

    async def _keep_files(self, files: asyncio.Task[Snapshot | None], checkpoint: Checkpoint | None, rested: bool) -> None:
        """Attach the files to the current state's checkpoint, or record them as the fresh kernel's."""
        snapshot = await self.filing.result(files)
        if self._outdated or snapshot is None:
            if snapshot is not None:
                self._every.files.drop(snapshot)
            if checkpoint is not None:
                checkpoint.miss(self.filing.skipped)
        elif checkpoint is not None:
            self._hold(checkpoint, snapshot, rested)
        else:
            self._cells.past.look(snapshot, rested=rested)

    # -- while the session is idle -------------------------------------------------------------------------------------

    def _begin_rolling(self) -> None:
        self._timer = None
        if not (self._task is None or self._task.done()):
            return
        if wait := self._budget.ask():
            self._timer = asyncio.get_running_loop().call_later(wait, self._begin_rolling)
        else:
            self._task = asyncio.create_task(self._roll())

    async def _roll(self) -> None:
        """Create a checkpoint while the session is idle. If the current state has one, save only its files."""
        if self._cells.busy or self._cells.state != "running":
            return
        if self._every.fresh:
            if self._cells.past.pairs.latest is None:
                self.filing.begin(self._cells.past.look)
            return
        if (made := self.present()) is not None:
            self.skipped = ""
            if made.snapshot is None:
                self.keep_files(made)
            return
        async with self._cells.turn():
            made = await self._copy()
        if made is not None:
            self.keep_files(made)

    def keep_files(self, checkpoint: Checkpoint) -> None:
        """Start to save the current files for a checkpoint of the current state."""
        self.filing.begin(functools.partial(self._hold, checkpoint), checkpoint.miss)

    # -- both ----------------------------------------------------------------------------------------------------------

    async def _copy(self, *, again: bool = False) -> Checkpoint | None:
        """Create a checkpoint of the idle kernel. Return None if that fails, or if `again` is set and nothing ran since."""
        kernel = self._kernels.current
        if self._kind is None or kernel is None or kernel.death is not None or kernel.state is not State.IDLE:
            return None
        if kernel.memory.short:
            self._miss("the session uses too much of its memory for another copy: raise the limit with memory= (--memory)")
            return None
        before = self.all()
        began = time.perf_counter()
        try:
            checkpoint = await self._every.copy(kernel, automatic=True, again=again)
            if checkpoint is None:
                self.skipped = ""
                return None
            telemetry.observe("cellblock.checkpoint.duration", time.perf_counter() - began, _AUTOMATIC)
            self.skipped = ""
        except (BusyError, CheckpointError, KernelDiedError, OSError) as error:
            self._miss(str(error))
            return None
        self._last = checkpoint.moment.state
        self._reasons.pop(self._last, None)
        longest = None if isinstance(self._kind, Exact) else self._kind.longest
        if longest is not None and (took := time.perf_counter() - began) > longest:
            self._kind = None
            self.skipped = f"the last checkpoint took {took:.2g} s, and the limit is {longest:g} s"
            _log.info("%s: no more automatic checkpoints: %s", self._name, self.skipped)
        else:
            self._make_room(checkpoint, before)
        return checkpoint

    async def copy_present(self) -> Checkpoint | None:
        """Return the current state's checkpoint. A rolling session creates a missing one."""
        if (made := self.present()) is None and isinstance(self._kind, Rolling) and not self._every.fresh:
            made = await self._copy()
        return made

    def _miss(self, reason: str) -> None:
        self.skipped = self._reasons[self._cells.past.state] = reason
        for state in [*self._reasons][:-_MOST_REASONS]:
            del self._reasons[state]

    def _make_room(self, made: Checkpoint, before: list[Checkpoint]) -> None:
        """Drop checkpoints that the new one makes redundant: the oldest, and others after the same cell that no redo needs."""
        needed = {undid.since for undid in self._cells.past.redoable}
        for one in before:
            if one.moment.last == made.moment.last and one.moment.state not in needed:
                one.discard()
        if before and before[-1].alive:
            self._budget.spend(before[-1])
        self.drop_surplus()

    def _hold(self, checkpoint: Checkpoint, files: Snapshot, rested: bool = False) -> None:
        if checkpoint.moment.state == self._cells.past.state:
            self._cells.past.rest(checkpoint.moment.state)
            self._cells.past.look(self._every.files.hold(files), rested=rested)
        if checkpoint.alive:
            checkpoint.let_go()
            checkpoint.hold(files, self._every.files.drop)
        else:
            self._every.files.drop(files)

    def forget_files(self) -> None:
        """Drop the current state's snapshot, because the workspace has changed. A new one follows later."""
        if (made := self.present()) is not None:
            made.let_go()
        self._cells.past.look(None)

    def files_changed(self) -> None:
        """Handle an external change of the session's files, which undo does not revert."""
        if self._cells.busy or self._kind is None or self._cells.state != "running":
            return
        self.forget_files()
        if isinstance(self._kind, Exact) or self._cells.past.line or self.present() is not None:
            self.turn_ended()
        else:
            self.filing.stop()
            self.filing.begin(self._cells.past.look)

    # -- dropping ------------------------------------------------------------------------------------------------------

    def gone_to(self, checkpoint: Checkpoint) -> None:
        """Handle the restore of a checkpoint: drop checkpoints of later states."""
        if self.present() is not checkpoint:
            self.forget_files()
        line = {cell.number for cell in checkpoint.moment.past}
        for other in self.all():
            if not other.moment.is_of(line):
                other.discard()

    def begin_anew(self) -> None:
        """Handle a fresh kernel."""
        self._drop_all()
        self.skipped = ""
        if isinstance(self._kind, Exact):
            self._keep_now()
        elif self._kind is not None:
            self.filing.begin(self._cells.past.look)

    def drop_surplus(self) -> None:
        """Drop the oldest checkpoints above the limit."""
        if self._kind is not None:  # an exact session's current checkpoint is for recovery, not for undo
            self._drop_oldest(self._kind.keep + isinstance(self._kind, Exact))
            self._cells.past.merge()

    def relieve(self) -> bool:
        """Free memory: drop all checkpoints but the newest, or else the newest. Return whether there was one."""
        if self._cells.past.going is None and self._every.drop_redos():  # a redo needs its own until it is done
            return True
        automatic = self.all()
        for checkpoint in automatic[:-1] or automatic:
            checkpoint.discard()
        return bool(automatic)

    def _drop_oldest(self, keep: int) -> None:
        automatic = self.all()
        for checkpoint in automatic[: max(len(automatic) - keep, 0)]:
            checkpoint.discard()

    async def close(self) -> None:
        """Drop all automatic checkpoints and their files, before the session ends. Idempotent."""
        self.request_begins()
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        await self.filing.close()
        self._drop_all()
        self._cells.past.pairs.clear(self._cells.past.state)

    def _drop_all(self) -> None:
        for checkpoint in self.all():
            checkpoint.discard()


class Crashes:
    """Replaces the dead kernels of one session from its checkpoints.

    Attributes:
        lost: Number of cells that an earlier host found lost, because it had already continued from an earlier state.
    """

    def __init__(self, name: str, states: CheckpointList, automatic: AutomaticCheckpoints, resuming: Resuming) -> None:
        self._name = name
        self._states = states
        self._automatic = automatic
        self._resuming = resuming
        self._deadly: set[int] = set()
        """States in which something ends the kernel without a cell."""
        self._recovered: tuple[Kernel, int] | None = None
        """The last kernel made here, and its state."""
        self._why = ""
        """Why the last attempt to make a kernel failed."""
        self.lost = 0

    def last_state(self, dead: Kernel, failed: Container[int] = ()) -> Checkpoint | None:
        """Return the last state of a dead kernel from which the session can continue, except failed ones; None without one."""
        states = self._states
        line = {cell.number for cell in states.past.line}
        kept = [one for one in states.all() if one.moment.copy.family is dead.family and one.moment.state not in self._deadly]
        kept = [one for one in kept if one.moment.state not in failed]
        found = [one for one in kept if one.moment.is_of(line)]
        if not found or not self._automatic.wanted or dead.memory.hopeless:
            return None
        return max(found, key=lambda one: (len(one.moment.past), one.moment.state))

    async def recover(self, dead: Kernel) -> Kernel | None:
        """Create a kernel from the last usable state, or None.

        Raises:
            LaunchError: There is no room for a kernel now. The state is kept for the next attempt.
        """
        if self._recovered is not None and self._recovered[0] is dead and _has_ended_itself(dead):
            # Something in that state, such as a background task, kills the kernel. It would do so again.
            self._deadly.add(self._recovered[1])
        failed, began = set[int](), time.monotonic()
        while time.monotonic() - began < _RECOVERING and (checkpoint := self.last_state(dead, failed)) is not None:
            restored = self._restored(checkpoint, dead)
            if (kernel := await self.replace_kernel(checkpoint, restored, dead.notice(restored))) is not None:
                return kernel
            failed.add(checkpoint.moment.state)
        if (checkpoint := self.last_state(dead)) is None:
            return None
        raise LaunchError(
            f"the kernel of {self._name} died, and {self._why} Its state after cell {checkpoint.execution_count} is saved, "
            "and the next cell tries again: end processes of the session, or free memory"
        )

    def awaited(self, dead: Kernel) -> Restored | None:
        """Describe the state that the session restores once there is room for a kernel, or None."""
        checkpoint = self.last_state(dead)
        return None if checkpoint is None else replace(self._restored(checkpoint, dead), waits_for=self._why)

    def _restored(self, checkpoint: Checkpoint, dead: Kernel) -> Restored:
        # Effects of actions other than cells, such as `put`, are lost too.
        return self.restored(checkpoint, self._states.past.before if dead.death_reported else self._states.past.state)

    def restored(self, checkpoint: Checkpoint, reached: int) -> Restored:
        """Describe a recovery from a checkpoint. `reached` is the number of the later state that is lost."""
        lost = len(self._states.past.left_by(checkpoint.moment.past)) or int(checkpoint.moment.state != reached)
        lost, self.lost = max(lost, self.lost), 0
        return Restored(checkpoint.execution_count, lost)

    async def replace_kernel(self, checkpoint: Checkpoint, restored: Restored, notice: DeathNotice | None) -> Kernel | None:
        """Create a kernel in place of a dead one; None if that fails."""
        states = self._states
        began = states.begin_going(checkpoint.id, "crash", restored.lost)
        try:
            kernel = await self._resuming.resume(checkpoint, notice=notice)
        except (CheckpointError, LaunchError) as error:
            _log.info("%s: no kernel could be made of %r: %s", self._name, checkpoint, error)
            self.lost, self._why = restored.lost, f"{str(error).partition('. ')[0]}."
            return None
        states.go_to_memory_of(checkpoint, began)
        self._automatic.forget_files()
        self._automatic.turn_ended()
        kernel.restored = restored
        kernel.memory.look_first()
        self._recovered = kernel, checkpoint.moment.state
        return kernel


def _has_ended_itself(dead: Kernel) -> bool:
    """Return whether a kernel ended without a cell and was not killed."""
    return dead.cells == 0 and dead.death is not None and dead.death.exit_status not in (None, -signal.SIGKILL)
