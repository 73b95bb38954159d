"""The checkpoints of one session: making them, keeping them, and going back to them."""

from __future__ import annotations

import functools
import itertools
import logging
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from cellblock.errors import CellblockError, CheckpointError, InvalidInputError, LaunchError, SnapshotError, shown
from cellblock.host.checkpoints.automatic import AutomaticCheckpoints
from cellblock.host.checkpoints.checkpoint import Checkpoint, Moment, find_checkpoint
from cellblock.host.checkpoints.fitting import check_same_sandbox
from cellblock.host.checkpoints.keeping import StateKeeping
from cellblock.host.checkpoints.past import files_time
from cellblock.host.checkpoints.resuming import KernelMaker, Resuming
from cellblock.host.checkpoints.rolling import Budget, Exact, Restored, Rolling
from cellblock.host.checkpoints.takeover import Takeover
from cellblock.host.kernels.stopping import answer_to
from cellblock.host.launch.kernel_spec import DeathNotice
from cellblock.model.checkpoints import Changes, FilesMode, Undone

if TYPE_CHECKING:
    from cellblock.host.checkpoints.branches import Beginning, BranchDirectory
    from cellblock.host.checkpoints.files import CheckpointFiles
    from cellblock.host.checkpoints.past import Numbered, Past
    from cellblock.host.checkpoints.recalled import Recalled, Way
    from cellblock.host.checkpoints.state_log import StateLog
    from cellblock.host.kernels.cells import Cells
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.kernels.kernel_slot import KernelSlot
    from cellblock.host.launch.kernel_spec import KernelSpec
    from cellblock.host.options import ResolvedOptions, SessionOptions
    from cellblock.host.snapshots import Snapshot
    from cellblock.host.snapshots.times import Spans
    from cellblock.host.snapshots.written import Description

_log = logging.getLogger("cellblock.sessions")
_MAX_NAME = 200
_GOES_BACK = "The session goes back to an earlier state."
_ENDED = "the checkpoints of earlier cells ended with the process that had made them, which was killed"
_FILES_LOST = "they could not be read when the host was replaced that had kept them"
_MAX_ADOPTED = 1000
"""How many calls of adopted branches are remembered."""


class CheckpointHost(KernelMaker, Protocol):
    """The part of a host that checkpoints need.

    Attributes:
        checkpoint_budget: The limits on automatic checkpoints of all its sessions.
    """

    checkpoint_budget: Budget


class Checkpoints:
    """The checkpoints of one `Session`.

    Attributes:
        files: Keeps and restores the files of the session's directory.
        automatic: The checkpoints that are made automatically.
        resuming: Makes kernels from them.
        branch: The directory of its files, if it is not the workspace of its sandbox.
        ended: Why there are no checkpoints of earlier cells, if the session was taken over from a killed process.
        keeping: Records what a later host needs to go back to them; None without a later host.
        lost: How many cells an earlier host found lost when the kernel died: it had continued from an earlier state already.
    """

    def __init__(
        self,
        name: str,
        host: CheckpointHost,
        options: SessionOptions,
        resolved: ResolvedOptions,
        wanted: KernelSpec,
        cells: Cells,
        kernels: KernelSlot,
        kind: Exact | Rolling | None,
        environment: Callable[[int], Mapping[str, str]],
        outside: Callable[[float], list[str]],
        files: CheckpointFiles,
        branch: BranchDirectory | None,
    ) -> None:
        """Start without checkpoints.

        Args:
            name: The session's name in messages.
            host: Makes kernels from copies.
            options: The session's options, also for sessions that are made from its checkpoints.
            resolved: The options with all defaults filled in.
            wanted: The specification of the session's kernels.
            cells: The session's cells.
            kernels: Where they run.
            kind: How automatic checkpoints are made; None: they are not.
            environment: Returns the environment variables for a proxy that listens on a port in the session.
            outside: Returns the outside calls that were allowed since a time.
            files: Keeps and restores the files of the session's directory.
            branch: The directory of these files, if it is not the workspace of its sandbox.
        """
        self._name = name
        self._host = host
        self._options, self._resolved = options, resolved
        self._wanted = wanted
        self._cells = cells
        self._kernels = kernels
        self._outside = outside
        self._adopted: deque[tuple[float, str]] = deque(maxlen=_MAX_ADOPTED)
        self.files = files
        self.branch = branch
        self._kept: list[Checkpoint] = []
        self._fresh = 0
        """The state that its last fresh kernel began with; 0 if it has had none."""
        self.ended = ""
        self.keeping: StateKeeping | None = None
        self._deadly: set[int] = set()
        self._recovered: tuple[Kernel, int] | None = None
        self.lost = 0
        self.resuming = Resuming(host, wanted, environment)
        self.automatic = AutomaticCheckpoints(name, self, host.checkpoint_budget, cells, kernels, kind)
        cells.can_recover = lambda dead: self.to_recover(dead) is not None

    # -- making --------------------------------------------------------------------------------------------------------

    async def make(self, name: str, files: FilesMode) -> Checkpoint:
        """See `Session.checkpoint`."""
        if not isinstance(name, str) or len(name) > _MAX_NAME:
            raise InvalidInputError(f"a checkpoint's name must be a text of at most {_MAX_NAME} characters, not {name!r:.250}")
        if files not in ("shared", "copy"):
            raise InvalidInputError(f"files must be 'shared' or 'copy', not {files!r}")
        async with self._cells.turn():
            try:
                checkpoint = await self.copy(await self._kernels.live(), name=name, automatic=False)
                if files == "copy":
                    try:
                        checkpoint.hold(await self.files.take(), self.files.drop)
                    except BaseException:  # also a cancellation: nothing else owns the checkpoint
                        checkpoint.discard()
                        raise
                return checkpoint
            finally:
                self.automatic.has_ended()  # again: there may be none, or this one may be dropped before the next cell

    async def copy(self, kernel: Kernel, *, name: str = "", automatic: bool) -> Checkpoint:
        """Make a checkpoint of a kernel, while no cell can run."""
        ask = functools.partial(answer_to, kernel)
        copy = await kernel.family.copy(kernel.control, ask)
        past = self._cells.past
        moment = Moment(copy, self._host, self._options, self._resolved, past.line, past.state, self._wanted, self.branch)
        checkpoint = Checkpoint(moment, self, name=name, automatic=automatic, execution_count=kernel.count)
        self._kept.append(checkpoint)
        if self.keeping is not None:
            self.keeping.made(checkpoint)
        return checkpoint

    @property
    def crowded(self) -> bool:
        """Whether a second kernel with all of the session's variables could exceed the limit of memory."""
        kernel = self._kernels.current
        limit = self._wanted.policy.resources.memory if self._wanted.tier.sandboxed else None
        return kernel is not None and limit is not None and 2 * kernel.memory.used > limit

    @property
    def fresh(self) -> bool:
        """Whether the session's state is that of a fresh kernel."""
        return self._cells.past.state == self._fresh

    def all(self) -> list[Checkpoint]:
        """Return the usable ones, oldest first."""
        self._kept = [checkpoint for checkpoint in self._kept if checkpoint.alive]
        return [*self._kept]

    def forget(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint that was dropped."""
        if checkpoint in self._kept:
            self._kept.remove(checkpoint)
            self.write("gone", checkpoint.id)

    def note_files(self, checkpoint: Checkpoint) -> None:
        """Record a change of a checkpoint's files."""
        if self.keeping is not None:
            self.keeping.files(checkpoint)

    # -- for a later host ----------------------------------------------------------------------------------------------

    @property
    def past(self) -> Past:
        """The session's history."""
        return self._cells.past

    @property
    def fresh_state(self) -> int:
        """The state that its last fresh kernel began with; 0 if it has had none."""
        return self._fresh

    @property
    def first(self) -> Snapshot | None:
        """The files before the first cell of that kernel, if they were kept."""
        return self.automatic.filing.first

    def describe(self, snapshot: Snapshot | None) -> Description | None:
        """Return what a later host needs to find files again."""
        return self.files.describe(snapshot)

    def keep(self, log: StateLog) -> None:
        """Record everything from now on for a later host."""
        kernel = self._kernels.current
        self._keep(StateKeeping(log, self, kernel=0 if kernel is None else kernel.number))

    def _keep(self, keeping: StateKeeping) -> None:
        self.keeping = keeping
        self._cells.past.write, self._cells.past.settle = keeping.write, keeping.log.flush
        self._kernels.on_put = lambda kernel: keeping.write("kernel", kernel.number)
        self.automatic.filing.on_first = lambda: keeping.write("first", self.describe(self.first))

    def rewrite(self) -> None:
        """Record the whole state anew: more has changed than single records express."""
        if self.keeping is not None:
            self.keeping.log.rebase()

    def note_outside(self, call: str) -> None:
        """Record an outside call that was allowed just now."""
        self.write("outside", time.monotonic(), call)

    @property
    def past_since(self) -> float:
        """Start of the past in seconds since the epoch, if an earlier host has recorded it; else 0."""
        return 0.0 if self.keeping is None else self.keeping.since

    def write(self, word: str, *rest: object) -> None:
        """Record an event for a later host, if records are kept; see `StateKeeping.write`."""
        if self.keeping is not None:
            self.keeping.write(word, *rest)

    def recall(self, log: StateLog, recalled: Recalled) -> Takeover:
        """Continue with the recorded states of an earlier host. Those whose copies have ended are left out.

        Returns:
            The steps that remain until the session takes cells.
        """
        self._cells.past = recalled.past
        self._fresh = recalled.fresh
        self.automatic.filing.first = recalled.first_snapshot
        for state in recalled.states.values():
            if state.copy is None or state.copy.gone.done():
                if state.snapshot is not None:
                    self.files.drop(state.snapshot)
                continue
            kept = state.kept
            moment = Moment(
                *(state.copy, self._host, self._options, self._resolved, state.past, kept.state, self._wanted, self.branch)
            )
            checkpoint = Checkpoint(
                moment,
                self,
                name=kept.name,
                automatic=kept.automatic,
                execution_count=kept.execution_count,
                kept=kept,
            )
            self._kept.append(checkpoint)
            checkpoint.without_files = state.without_files
            if state.snapshot is not None:
                checkpoint.hold(state.snapshot, self.files.drop)
            elif state.files is not None:
                checkpoint.without_files = _FILES_LOST
        for checkpoint in self.automatic.all()[:-1]:
            self._host.checkpoint_budget.spend(checkpoint)
        newest = max((one for one in self._kept if one.snapshot is not None), key=lambda one: one.moment.state, default=None)
        known = recalled.first_snapshot if newest is None else newest.snapshot
        if known is not None:
            self.files.begin_with(known)
        self._adopted.extend(recalled.outside)
        self._keep(StateKeeping(log, self, recalled))
        return Takeover(self, recalled)

    # -- going back ----------------------------------------------------------------------------------------------------

    def find(self, checkpoint: Checkpoint | str) -> Checkpoint:
        """Return a checkpoint that this session can use, given as an object, a name or an id.

        Raises:
            InvalidInputError, CheckpointError: There is none of this name; as for `check`.
        """
        found = find_checkpoint(self.all(), checkpoint) if isinstance(checkpoint, str) else checkpoint
        self.check(found)
        return found

    async def restore(self, wanted: Checkpoint | str) -> Changes:
        """See `Session.restore`."""
        checkpoint = self.find(wanted)
        async with self._cells.turn(stop=_GOES_BACK):
            self.check(checkpoint)
            return await self.go_to(checkpoint)

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that this session can use a checkpoint.

        Raises:
            InvalidInputError, CheckpointError: It is not a checkpoint; it is gone, or belongs to another host.
        """
        if not isinstance(checkpoint, Checkpoint):
            raise InvalidInputError(f"checkpoint must be a checkpoint, its name or its id, not {checkpoint!r:.100}")
        checkpoint.check()
        if checkpoint.moment.host is not self._host:
            raise CheckpointError(
                "the checkpoint belongs to another host; a session can only go back to checkpoints of its own host"
            )
        check_same_sandbox(checkpoint.moment.wanted, self._wanted)

    async def go_to(self, checkpoint: Checkpoint, within: Spans | None = None) -> Changes:
        """Go to a checkpoint's state, in the session's turn; `within`: restore only files that were changed in these spans."""
        changes, began = Changes(), files_time()
        self._begin_going(checkpoint.id, "restore" if within is None else "undo")

        async def launch() -> Kernel:
            nonlocal changes
            kernel, changes = await self._resume_with_files(checkpoint, within=within)
            return kernel

        try:
            async with self._still(files=checkpoint.snapshot is not None):
                await self._kernels.swap(launch, lambda: self._has_gone_to(checkpoint, began))
        except BaseException:
            self.write("stayed")
            raise
        finally:
            self.automatic.has_ended()  # this one may be dropped before the next cell, or hold no files
        return changes

    @asynccontextmanager
    async def _still(self, *, files: bool = True) -> AsyncIterator[None]:
        """Stop all processes of the session while files are brought back and its kernel is replaced: they could write to them.

        Args:
            files: Whether there are files to bring back.

        Raises:
            CheckpointError: A process cannot be stopped.
        """
        kernel = self._kernels.current
        if kernel is None or kernel.death is not None or not files:
            yield
            return
        try:
            if left := await kernel.freeze():
                raise CheckpointError(
                    f"{left} of the session's processes cannot be stopped, and could write to files that are brought back: "
                    "wait a moment, or end them"
                )
            yield
        except BaseException:  # also a cancellation: the processes continue, if the kernel is still the session's
            kernel.thaw()
            raise

    def _has_gone_to(self, checkpoint: Checkpoint, began: int) -> None:
        self._cells.past.go_to(checkpoint.moment.past, checkpoint.moment.state)
        self._cells.past.brought_back(began)
        self.automatic.gone_to(checkpoint)
        self._cells.past.settle()

    async def _resume_with_files(
        self, checkpoint: Checkpoint, beginning: Beginning | None = None, *, within: Spans | None = None
    ) -> tuple[Kernel, Changes]:
        """Make a kernel from a checkpoint. If it holds files, they are restored first: the kernel reopens its files."""
        made: list[Kernel] = []

        async def resume() -> None:
            made.append(await self.resuming.resume(checkpoint, beginning))

        try:
            if checkpoint.snapshot is None:
                await resume()
                return made[0], Changes()
            changes = await self.files.restore(checkpoint.snapshot, resume, within=within)
            return made[0], changes
        except BaseException:  # also a cancellation: nothing else owns the kernel
            for kernel in made:
                await kernel.close()
            raise

    async def undo(self, count: int, *, partial: bool = False) -> Undone:
        """See `Session.undo`."""
        if type(count) is not int or count < 1:
            raise InvalidInputError(f"the number of cells to undo must be at least 1, not {shown(count)}")
        async with self._cells.turn(stop=_GOES_BACK):
            try:
                return await self._undo(self._cells.past.line, count, partial)
            finally:
                self.automatic.has_ended()  # with files that may have stayed as they are

    async def _undo(self, line: Sequence[Numbered], count: int, partial: bool) -> Undone:
        past = self._cells.past
        if count > len(line):
            raise CheckpointError(_too_few(len(line), count) + (f": {self.ended}" if self.ended else ""))
        checkpoint = self._last_before(line, count)
        if checkpoint is None and not (count == len(line) and self._fresh):
            raise CheckpointError(self._cannot_undo(line, count))
        state = self._fresh if checkpoint is None else checkpoint.moment.state
        snapshot = self.automatic.filing.first if checkpoint is None else checkpoint.snapshot
        spans = past.spans_after(state)
        exact = state == line[-count].begun_in
        if not exact and not partial:
            raise CheckpointError(self._cannot_undo(line, count))
        left = await self._why_files_stay(checkpoint, snapshot, spans)
        if left and not partial:
            raise CheckpointError(
                f"{_those(count)} cannot be undone, because files cannot be brought back: {left}. With partial=True, all "
                "else is undone"
            )
        changes = await (self.begin_again(snapshot, spans) if checkpoint is None else self.go_to(checkpoint, spans or None))
        self.automatic.forget_files()  # they are kept again, including those that stayed as they are
        kept = {cell.number for cell in past.line}
        return Undone(
            [cell.entry for cell in line if cell.number not in kept],
            0 if checkpoint is None else checkpoint.execution_count,
            sorted({*changes.written, *changes.removed}),
            left,
            self.outside(0.0 if checkpoint is None else checkpoint.at),
        )

    async def begin_again(self, files: Snapshot | None, spans: Spans) -> Changes:
        """Go back to the fresh kernel that preceded all cells of the line, and to its files."""
        numbers = [cell.number for cell in self._cells.past.line]

        renewed = False

        async def renew() -> None:
            nonlocal renewed
            renewed = True
            try:
                await self._kernels.renew(force=True)
            finally:  # also if the caller is cancelled: the kernel is replaced nevertheless
                self._cells.past.abandon(numbers)

        if files is None:
            await renew()
            return Changes()
        self._begin_going("", "undo")
        self.automatic.filing.first = None  # a fresh kernel would drop them
        try:
            async with self._still():
                return await self.files.restore(files, renew, within=spans or None)
        except CellblockError:
            self.write("stayed")
            raise
        finally:
            if renewed:
                self.files.drop(files)
            else:  # the session has stayed as it was, and can go back later
                self.automatic.filing.first = files
            self.automatic.filing.on_first()

    def outside(self, since: float) -> list[str]:
        """Return the outside calls that were allowed since a time (`time.monotonic`), including those of adopted branches."""
        return [call for at, call in self._adopted if at >= since] + self._outside(since)

    def take_over(self, branch: Checkpoints) -> None:
        """Take over the checkpoints and outside calls of an adopted branch: its cells can be undone here from now on."""
        now = time.monotonic()
        self._adopted.extend((now, call) for call in branch.outside(0.0))
        line = {cell.number for cell in self._cells.past.line[:-1]}
        # The branch also has one of the state that it began with. That of a fresh kernel needs none.
        known = {one.moment.state for one in self.automatic.all()} | {self._fresh}
        earlier = [one for one in branch.automatic.all() if one.moment.is_of(line) and one.moment.state not in known]
        for checkpoint in earlier:
            branch.forget(checkpoint)
            checkpoint.belongs_to(self)
        self._kept += earlier
        self.automatic.drop_surplus()
        self.rewrite()  # the states of the branch are not in this session's past

    async def _why_files_stay(self, checkpoint: Checkpoint | None, files: Snapshot | None, spans: Spans) -> str:
        """Return why files cannot be restored; empty if they can, or if none have changed."""
        try:
            if files is not None:
                return await self.files.unkept_changed(files, spans)
            if not (changed := await self.files.changed_within(spans)):
                return ""
        except SnapshotError as error:
            return str(error)
        if checkpoint is not None and not checkpoint.automatic:
            why = "the checkpoint was made with files='shared'"
        else:
            why = checkpoint.without_files if checkpoint is not None else ""
            why = why or self.automatic.filing.skipped or "the next cell began before they were kept"
        return f"{changed}, and {why}"

    def _last_before(self, line: Sequence[Numbered], count: int) -> Checkpoint | None:
        """Return the checkpoint of the latest state from before the last `count` cells of a line; None if there is none.

        The latest, with or without files: those of an earlier one would not fit the variables. Actions other than cells, such
        as `put`, also make another state. Among checkpoints of the same state, an automatic one has the newest files.
        """
        before = {cell.number for cell in line[:-count]}
        found = [checkpoint for checkpoint in self.all() if checkpoint.moment.is_of(before)]
        return max(
            found,
            key=lambda one: (len(one.moment.past), one.moment.state, one.snapshot is not None, one.automatic),
            default=None,
        )

    def _cannot_undo(self, line: Sequence[Numbered], count: int) -> str:
        reason = self.automatic.skipped or (self.ended if count == len(line) else "")
        if not reason and not self.automatic.wanted:
            reason = "the session was made with recovery='none'"
        if not reason and self.automatic.exact:
            most = self.automatic.exact
            kept = "that of the last cell is" if most == 1 else f"those of the last {most} cells are"
            reason = f"only {kept} kept, and fewer if memory is short"
        reason = reason or "the next cell came before one was made, or it was dropped since"
        states = {checkpoint.moment.state for checkpoint in self.all()} | {self._fresh} - {0}
        exact = (number for number in range(count + 1, len(line) + 1) if line[-number].begun_in in states)
        ways = [f"{number} cells can be undone" for number in itertools.islice(exact, 1)]
        if (checkpoint := self._last_before(line, count)) is not None:
            ways.append(f"partial=True goes back over {len(line) - len(checkpoint.moment.past)}")
        return "; ".join([f"there is no checkpoint from before {_those(count)}: {reason}", *ways])

    async def begin_with(self, beginning: Beginning) -> Kernel:
        """Make the session's first kernel from a checkpoint."""
        checkpoint = beginning.checkpoint
        self.check(checkpoint)
        kernel, _ = await self._resume_with_files(checkpoint, beginning)
        self._cells.past.go_to(checkpoint.moment.past, checkpoint.moment.state)
        return kernel

    def begin_after_another(self) -> None:
        """Continue with the kernel of a killed process whose states are unknown."""
        self.ended = _ENDED

    def _begin_going(self, checkpoint: str, way: Way) -> None:
        """Record, before doing anything, that the session goes to another state; empty: to a fresh kernel."""
        self.write("going", checkpoint, way)
        self._cells.past.settle()

    async def about_to_begin_anew(self) -> None:
        """Record that a fresh kernel is about to be started."""
        self._begin_going("", "fresh")
        if self._wanted.tier.wrapped:
            # One srt at a time: the next would take what the last has put into the workspace for files, and leave it there.
            families = {one.moment.copy.family for one in self.automatic.all()}
            for one in self.automatic.all():
                one.discard()
            for family in families:
                await family.settle()

    def begin(self) -> None:
        """Handle the session's first kernel: make sure that its next cell can be undone."""
        if not self.fresh:
            self.automatic.has_ended()

    def begin_anew(self, kernel: Kernel) -> None:
        """Handle a fresh kernel."""
        self.resuming.serving = kernel.family
        self._cells.past.begin_anew()
        self._fresh, self.ended = self._cells.past.state, ""
        self.automatic.begin_anew()

    # -- after a crash -------------------------------------------------------------------------------------------------

    def to_recover(self, dead: Kernel) -> Checkpoint | None:
        """Return the last state of a dead kernel from which the session can continue, if there is one."""
        line = {cell.number for cell in self._cells.past.line}
        kept = [one for one in self.all() if one.moment.copy.family is dead.family and one.moment.state not in self._deadly]
        found = [one for one in kept if one.moment.is_of(line)]
        if not found or not self.automatic.wanted or dead.memory.hopeless:
            return None
        return max(found, key=lambda one: (len(one.moment.past), one.moment.state))

    async def recover(self, dead: Kernel) -> Kernel | None:
        """Make a kernel from the last usable state; None if there is none, or no kernel can be made from it."""
        if self._recovered is not None and self._recovered[0] is dead and _has_ended_itself(dead):
            # Something in that state, such as a background task, ends the kernel. It would do so again and again.
            self._deadly.add(self._recovered[1])
        if (checkpoint := self.to_recover(dead)) is None:
            return None
        past = self._cells.past
        # Effects of actions other than cells, such as `put`, are lost too.
        restored = self.restored(checkpoint, past.before if dead.death_reported else past.state)
        return await self.replace_kernel(checkpoint, restored, dead.notice(restored))

    def restored(self, checkpoint: Checkpoint, reached: int) -> Restored:
        """Describe how the session continues from a checkpoint; `reached` is the number of the later state that is lost."""
        lost = len(self._cells.past.left_by(checkpoint.moment.past)) or int(checkpoint.moment.state != reached)
        lost, self.lost = max(lost, self.lost), 0
        self.write("lost", lost)
        return Restored(checkpoint.execution_count, lost)

    async def replace_kernel(self, checkpoint: Checkpoint, restored: Restored, notice: DeathNotice | None) -> Kernel | None:
        """Make a kernel in place of one that has ended; None if that fails."""
        self._begin_going(checkpoint.id, "crash")
        try:
            kernel = await self.resuming.resume(checkpoint, notice=notice)
        except (CheckpointError, LaunchError) as error:
            _log.info("%s: no kernel could be made of %r: %s", self._name, checkpoint, error)
            return None
        self._cells.past.go_to(checkpoint.moment.past, checkpoint.moment.state)
        self.automatic.forget_files()
        self.automatic.has_ended()
        kernel.restored = restored
        kernel.memory.look_first()
        self._recovered = kernel, checkpoint.moment.state
        return kernel

    # -- the end -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Drop the automatic checkpoints and all files, before the session ends. It can be repeated."""
        await self.automatic.close()
        self._kept.clear()
        await self.files.close()


def _has_ended_itself(dead: Kernel) -> bool:
    """Whether a kernel ended without a cell, and was not killed."""
    return dead.cells == 0 and dead.death is not None and dead.death.exit_status not in (None, -signal.SIGKILL)


def _those(count: int) -> str:
    return "that cell" if count == 1 else "those cells"


def _too_few(there: int, wanted: int) -> str:
    if there == 0:
        return "there is no cell to undo"
    return f"there {'is only 1 cell' if there == 1 else f'are only {there} cells'} to undo, not {shown(wanted)}"
