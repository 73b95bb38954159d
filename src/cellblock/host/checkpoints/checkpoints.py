"""The checkpoints of one session: making them, keeping them, and going back to them."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from cellblock.errors import CellblockError, CheckpointError, InvalidInputError, SnapshotError, shown
from cellblock.host.checkpoints.automatic import AutomaticCheckpoints
from cellblock.host.checkpoints.checkpoint import Birth, Checkpoint, Moment, check_same_sandbox, find_checkpoint
from cellblock.host.checkpoints.crashes import Crashes
from cellblock.host.checkpoints.going_back import GoingBack, StartingAgain, stopped
from cellblock.host.checkpoints.redo import Redo, Redos
from cellblock.host.checkpoints.resuming import KernelMaker, Resuming
from cellblock.host.checkpoints.undoing import Way, find_way, intervals_of, what_stays
from cellblock.host.exchange import survey
from cellblock.host.kernels.family import Refusal
from cellblock.host.kernels.pairs import Instant
from cellblock.host.kernels.state_record import StateRecord
from cellblock.host.kernels.stopping import answer_to
from cellblock.host.snapshots.trash import Reason
from cellblock.model.checkpoints import Changes, FileChanges, FilesMode, StateChanges, TrashEntry, Undone

if TYPE_CHECKING:
    from cellblock.host.checkpoints.branches import Beginning, BranchDirectory
    from cellblock.host.checkpoints.budget import Budget
    from cellblock.host.checkpoints.files import CheckpointFiles, Then
    from cellblock.host.kernels.cells import Cells
    from cellblock.host.kernels.exit_status import Restored
    from cellblock.host.kernels.family import Copy
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.kernels.kernel_slot import KernelSlot
    from cellblock.host.kernels.past import Numbered, Past
    from cellblock.host.launch.kernel_spec import KernelSpec
    from cellblock.host.options import Exact, ResolvedOptions, Rolling, SessionOptions
    from cellblock.host.snapshots.snapshots import Reverted
    from cellblock.model import HistoryEntry
    from cellblock.model.variables import Survey

Before: TypeAlias = Callable[[], Awaitable[None]]
"""Called before a session goes back, once it is certain that it does."""

_MAX_NAME = 200
_GOES_BACK = "The session goes back to an earlier state."
_ENDED = "the checkpoints of earlier cells ended with the process that had made them, which was killed"
_COMPARING = 2.0
"""Time limit for hashing the values of each of two states. Values beyond it count as possibly changed."""

_MAX_ADOPTED = 1000
"""How many calls of adopted branches are remembered."""


class CheckpointHost(Protocol):
    """The part of a host that checkpoints need.

    Attributes:
        checkpoint_budget: The limits on automatic checkpoints of all its sessions.
    """

    checkpoint_budget: Budget

    @property
    def kernels(self) -> KernelMaker:
        """Its kernels: makes kernels from copies."""


class CheckpointRecorder(StateRecord):
    """Records changes of the checkpoints of one session, too. This one records nothing."""

    def made(self, checkpoint: Checkpoint) -> None:
        """Record a new checkpoint of the present state."""

    def files(self, checkpoint: Checkpoint) -> None:
        """Record a change of a checkpoint's files."""


NOT_RECORDED = CheckpointRecorder()


class Checkpoints:
    """The checkpoints of one `Session`.

    Attributes:
        files: Keeps and restores the files of the session's directory.
        automatic: The checkpoints that are made automatically.
        resuming: Makes kernels from them.
        branch: The directory of its files, if it is not the workspace of its sandbox.
        ended: Why there are no checkpoints of earlier cells, if the session was taken over from a killed process.
        record: Records what a later host needs to go back to them.
        crashes: Makes kernels from them in place of kernels that have died.
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
        self._begun_with: set[int] = set()
        """The cells before the beginning of a session that continues another one, or a saved one."""
        self.ended = ""
        self.record = NOT_RECORDED
        self._starting_again: StartingAgain | None = None
        self._redos = Redos()
        self.resuming = Resuming(host.kernels, wanted, environment)
        self.automatic = AutomaticCheckpoints(name, self, host.checkpoint_budget, cells, kernels, kind)
        self.crashes = Crashes(name, self)

    # -- making --------------------------------------------------------------------------------------------------------

    async def checkpoint(self, name: str = "", *, files: FilesMode = "shared") -> Checkpoint:
        """Keep the present state of the session's memory, to go back to later, any number of times.

        The kernel is forked, and the copy waits. That takes a few milliseconds, and memory only for later changes. What a copy
        of a process cannot have is lost when the session goes back: threads, and the connections of sockets
        (docs/checkpoints.md).

        Args:
            name: Its name.
            files: Whether the workspace's files belong to the state (``copy``), or stay as they are (``shared``).

        Raises:
            SnapshotError: The files cannot be kept. There is no checkpoint then.
            CheckpointError: The state would not survive, for example because of a library with its own threads. The message
                 names it and gives advice. The session continues.
            InvalidInputError, StateError, LaunchError, KernelDiedError: As for `execute`.
        """
        if not isinstance(name, str) or len(name) > _MAX_NAME:
            raise InvalidInputError(f"a checkpoint's name must be a text of at most {_MAX_NAME} characters, not {name!r:.250}")
        if files not in ("shared", "copy"):
            raise InvalidInputError(f"files must be 'shared' or 'copy', not {files!r}")
        return await self._make(name, files)

    async def passing_checkpoint(self, files: FilesMode) -> Checkpoint:
        """Make a checkpoint that is only there until the caller has gone to it, or made branches of it."""
        return await self._make("", files, passing=True)

    async def _make(self, name: str, files: FilesMode, *, passing: bool = False) -> Checkpoint:
        async with self._cells.turn():
            try:
                checkpoint = await self.copy(await self._kernels.live(), name=name, automatic=False, passing=passing)
                assert checkpoint is not None
                if files == "copy":
                    try:
                        checkpoint.hold(kept := await self.files.take(), self.files.drop)
                        self.past.look(self.files.hold(kept))
                    except BaseException:  # also a cancellation: nothing else owns the checkpoint
                        checkpoint.discard()
                        raise
                return checkpoint
            finally:
                self.automatic.turn_ended()  # again: there may be none, or this one may be dropped before the next cell

    async def copy(
        self, kernel: Kernel, *, name: str = "", automatic: bool, passing: bool = False, again: bool = False
    ) -> Checkpoint | None:
        """Make a checkpoint of a kernel, while no cell can run.

        Args:
            kernel: The kernel.
            name: Its name.
            automatic: Whether it is made automatically.
            passing: As for `passing_checkpoint`.
            again: Whether none is needed if tasks have not run since the last one. Otherwise there is another state.

        Returns:
            The checkpoint; None if none is needed.

        Raises:
            CheckpointError: The kernel's state would not survive, or the copy does not answer.
            KernelDiedError: The kernel has ended.
        """
        past = self._cells.past
        moved_on = again or (past.changing and not automatic)
        copy = await kernel.family.copy(kernel.control, functools.partial(answer_to, kernel), again=again)
        if copy is None:
            return None
        if moved_on:
            past.begin()
        if isinstance(copy, Refusal):
            if copy.pending:
                past.goes_on_changing()
            raise CheckpointError(copy.reason)
        checkpoint = Checkpoint(
            self._moment(copy, past.line, past.state), self, name=name, automatic=automatic, execution_count=kernel.count
        )
        checkpoint.passing = passing
        self._kept.append(checkpoint)
        if copy.pending:
            past.goes_on_changing()
        self.record.made(checkpoint)
        return checkpoint

    def _moment(self, copy: Copy, line: tuple[Numbered, ...], state: int) -> Moment:
        options = self._options, self._resolved
        return Moment(copy, self._host, *options, line, state, self._wanted, self.branch, self._cells.past)

    async def diff(self, checkpoint: Checkpoint | str, until: Checkpoint | str | None = None) -> StateChanges:
        """Return the changes since a checkpoint: variables that are new, changed or deleted.

        Files of the workspace are compared too, if the checkpoint holds them (``files="copy"``). Values are compared by hashes
        of their pickles, for which a temporary kernel is made from the checkpoint. Values that cannot be compared, such as a
        lock, or not within two seconds, are listed as unknown.

        Args:
            checkpoint: A checkpoint of any session of the same host, or the name or id of one of this session.
            until: Another one, for the changes up to that; None for those up to now.

        Raises:
            CheckpointError: It is gone, or belongs to another host.
            SnapshotError: The files cannot be read.
            StateError, LaunchError, KernelDiedError, ExecutionTimeoutError: As for `execute`, but raised.
        """
        from cellblock.model.variables import diff_variables  # few programs need it

        checkpoint = self.find(checkpoint)
        last = None if until is None else self.find(until)
        try:
            after = await (survey(self._cells.run_to_look, _COMPARING) if last is None else self._survey(last))
            before = await self._survey(checkpoint)
            files = await self._files_between(checkpoint, last)
        except CellblockError:
            for one in (checkpoint, *([] if last is None else [last])):
                one.check()  # nothing has failed: it was dropped meanwhile, or the session was closed
            raise
        return StateChanges(diff_variables(before, after), files)

    async def _files_between(self, checkpoint: Checkpoint, last: Checkpoint | None) -> FileChanges | None:
        """Return how the files have changed since a checkpoint; None if not both states hold any."""
        if checkpoint.snapshot is None or (last is not None and last.snapshot is None):
            return None
        return await self.files.diff(checkpoint.snapshot, None if last is None else last.snapshot)

    async def _survey(self, checkpoint: Checkpoint) -> Survey:
        """Return the variables of a checkpoint, for which a kernel is made from it."""
        kernel = await self.resuming.look_at(checkpoint)
        try:
            return await survey(functools.partial(self._cells.run_elsewhere, kernel), _COMPARING)
        finally:
            await kernel.discard()  # its exit handlers, and text for open files, are the session's

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

    @property
    def begins_fresh(self) -> bool:
        """Whether a fresh kernel undoes all cells: the session began with one, and not with the cells of another session."""
        return self._fresh != 0 and not self._begun_with

    def all(self) -> list[Checkpoint]:
        """Return the usable ones, oldest first."""
        self._kept = [checkpoint for checkpoint in self._kept if checkpoint.alive]
        return [*self._kept]

    def can_recover(self, dead: Kernel) -> bool:
        """Return whether a dead kernel may have left a state to continue from."""
        return self.crashes.last_state(dead) is not None

    def awaited(self, dead: Kernel) -> Restored | None:
        """See `Crashes.awaited`."""
        return self.crashes.awaited(dead)

    def forget(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint that was dropped."""
        if checkpoint in self._kept:
            self._kept.remove(checkpoint)
            self.write("gone", checkpoint.id)

    def note_files(self, checkpoint: Checkpoint) -> None:
        """Record a change of a checkpoint's files."""
        self.record.files(checkpoint)

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
    def begun_with(self) -> list[int]:
        """The numbers of the cells from before the beginning of the session."""
        return sorted(self._begun_with)

    def keep(self, record: CheckpointRecorder) -> None:
        """Record everything from now on for a later host."""
        self.record = self._cells.past.record = record

    def rewrite(self) -> None:
        """Record the whole state anew: more has changed than single records express."""
        self.record.rewrite()

    def note_outside(self, call: str) -> None:
        """Record an outside call that was allowed just now."""
        self.write("outside", time.monotonic(), call)

    def write(self, word: str, *rest: object) -> None:
        """Record an event for a later host; see `StateRecord.write`."""
        self.record.write(word, *rest)

    # -- of an earlier host --------------------------------------------------------------------------------------------

    def recall(
        self,
        past: Past,
        fresh: int,
        begun_with: Iterable[int],
        outside: Sequence[tuple[float, str]],
    ) -> None:
        """Continue with the states of an earlier host; `add_earlier` follows for each checkpoint, and `recalled` at last.

        Args:
            past: The session's history.
            fresh: The state that its last fresh kernel began with; 0 if it has had none.
            begun_with: The numbers of the cells from before the beginning of the session.
            outside: Outside calls that were allowed, with their times (`time.monotonic`).
        """
        self._cells.past = past
        self._fresh, self._begun_with = fresh, set(begun_with)
        self.automatic.take_past()
        self._adopted.extend(outside)

    def add_earlier(
        self,
        copy: Copy,
        state: int,
        past: tuple[Numbered, ...],
        *,
        born: Birth,
        name: str,
        automatic: bool,
        execution_count: int,
    ) -> Checkpoint:
        """Add a checkpoint of an earlier host; see `Checkpoint` and `Moment`."""
        moment = self._moment(copy, past, state)
        checkpoint = Checkpoint(moment, self, name=name, automatic=automatic, execution_count=execution_count, born=born)
        self._kept.append(checkpoint)
        return checkpoint

    def recalled(self) -> None:
        """Handle that all checkpoints of an earlier host are added."""
        for checkpoint in self.automatic.all()[:-1]:
            self._host.checkpoint_budget.spend(checkpoint)
        newest = max((one for one in self._kept if one.snapshot is not None), key=lambda one: one.moment.state, default=None)
        known = self.past.pairs.latest if newest is None else newest.snapshot
        if known is not None:
            self.files.begin_with(known)

    # -- going back ----------------------------------------------------------------------------------------------------

    def find(self, checkpoint: Checkpoint | str) -> Checkpoint:
        """Return a checkpoint that this session can use, given as an object, a name or an id.

        Raises:
            InvalidInputError, CheckpointError: There is none of this name; as for `check`.
        """
        found = find_checkpoint(self.all(), checkpoint) if isinstance(checkpoint, str) else checkpoint
        self.check(found)
        return found

    async def restore(self, checkpoint: Checkpoint | str, before: Before | None = None, operation: str = "restore") -> Changes:
        """See `Session.restore`; `before` is called when it is decided."""
        checkpoint = self.find(checkpoint)
        async with self._cells.turn(stop=_GOES_BACK):
            self.check(checkpoint)
            if before is not None:
                await before()
            return await self.restore_to(checkpoint, operation)

    async def restore_to(self, checkpoint: Checkpoint, operation: str) -> Changes:
        """Go to a checkpoint's state, with its files if it holds some, in the session's turn."""
        changes = Changes()
        snapshot = checkpoint.snapshot

        async def files(then: Then) -> None:
            nonlocal changes
            assert snapshot is not None
            changes = await self.files.restore(snapshot, then, Reason(operation))

        await self._go_to(checkpoint, "restore", None if snapshot is None else files)
        self.past.begun += 1
        return changes

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

    async def _go_to(
        self,
        checkpoint: Checkpoint,
        way: str,
        files: Callable[[Then], Awaitable[object]] | None,
        arrive: Callable[[], None] | None = None,
    ) -> None:
        """Go to a checkpoint's state, in the session's turn.

        Args:
            checkpoint: The checkpoint.
            way: What a later host has to finish (`recalled.Way`).
            files: As for `GoingBack`.
            arrive: As for `GoingBack`.
        """
        began = self.begin_going(checkpoint.id, way)
        move = GoingBack(checkpoint, self.resuming, self.automatic, self._cells.past, files, began, arrive=arrive)
        try:
            async with stopped(self._kernels.current):
                await self._kernels.swap(move)
        except BaseException:
            self.write("stayed")
            raise
        finally:
            self.automatic.turn_ended()  # this one may be dropped before the next cell, or hold no files

    async def undo(self, count: int = 1, *, partial: bool = False, before: Before | None = None) -> Undone:
        """See `Session.undo`; `before` is called when it is decided."""
        if type(count) is not int or count < 1:
            raise InvalidInputError(f"the number of cells to undo must be at least 1, not {shown(count)}")
        async with self._cells.turn(stop=_GOES_BACK):
            try:
                return await self._undo(self._cells.past.line, count, partial, before)
            finally:
                self.automatic.turn_ended()  # with files that may have stayed as they are

    async def _undo(self, line: Sequence[Numbered], count: int, partial: bool, before: Before | None) -> Undone:
        way = await find_way(self, line, count, partial=partial)
        if before is not None:
            await before()
        redo = self._prepare_redo(way.checkpoint, await self.automatic.copy_present())
        try:
            reverted, left = await self._go_back(way, line, partial=partial)
        except BaseException:  # also a cancellation: the session has stayed as it was, unless its kernel is fresh
            self._forget_redo(redo)
            raise
        self.automatic.forget_files()  # they are kept again, including those that stayed as they are
        kept = {cell.number for cell in self._cells.past.line}
        cells = [cell.entry for cell in line if cell.number not in kept]
        if redo is not None:
            redo.cells, redo.reverted = cells, reverted
            self._redos.add(redo)
            self.rewrite()
        return self._undone(cells, reverted, left, self.outside(way.since))

    async def _go_back(self, way: Way, line: Sequence[Numbered], *, partial: bool) -> tuple[Reverted | None, str]:
        """Go back; return what was done to files, and why some of them stay."""
        reverted: Reverted | None = None
        intervals, checkpoint, left = way.intervals, way.checkpoint, way.left
        why = Reason("undo", line[-1].entry.execution_count or 0)

        async def files(then: Then) -> None:
            nonlocal reverted
            reverted = await self.files.undo(intervals or (), then, why, partial=partial)

        bring = files if intervals else None
        try:
            await (self._begin_again(bring) if checkpoint is None else self._go_to(checkpoint, "undo", bring))
        except SnapshotError as error:  # the disk is full, for example
            if not partial or bring is None:
                raise
            left = str(error)
            await (self._begin_again(None) if checkpoint is None else self._go_to(checkpoint, "undo", None))
        return reverted, left

    def _undone(self, cells: list[HistoryEntry], reverted: Reverted | None, left: str, outside: list[str]) -> Undone:
        stays = [left or ("" if reverted is None else reverted.left)]
        stays.append("" if reverted is None else what_stays(reverted.later))
        actions, trash = [], ""
        if reverted is not None:
            actions, trash = reverted.actions, reverted.entry.id if reverted.entry.taken else ""
        count = self._kernels.count
        redoable = self._redos.count(self.past.begun)
        return Undone(cells, count, actions, ". ".join(filter(None, stays)), outside, trash, redoable)

    async def finish_undo(self, checkpoint: Checkpoint | None) -> None:
        """Finish an undo that an earlier host has begun: some files may be back already."""
        state = self.fresh_state if checkpoint is None else checkpoint.moment.state
        # Tasks of the code go on since this host has continued its kernel: what they change until they are stopped is theirs.
        async with stopped(self._kernels.current):
            intervals, left = await intervals_of(self, self.past.pairs.after(state))
            await self._go_back(Way(checkpoint, intervals, left, 0.0), self._cells.past.line, partial=True)

    # -- taking an undo back -------------------------------------------------------------------------------------------

    def _prepare_redo(self, target: Checkpoint | None, present: Checkpoint | None) -> Redo | None:
        """Set aside what takes an undo back, before it begins; None if the present state has no checkpoint.

        The record keeps them until the undo is done: if this host is killed meanwhile, the next one may stay in this state.
        """
        if present is None or self._wanted.tier.wrapped:
            return None
        state = self.fresh_state if target is None else target.moment.state
        later = [one for one in self.automatic.all() if one.moment.state > state and one not in (target, present)]
        for checkpoint in (present, *later):
            if checkpoint in self._kept:
                self._kept.remove(checkpoint)
        pairs = self.past.pairs.copied(self.files.hold)
        pairs.release = self.files.drop
        return Redo(present, later, pairs, (self._fresh, self.ended), [], self.past.begun)

    def _forget_redo(self, redo: Redo | None) -> None:
        """Take back what was set aside: the undo has failed."""
        if redo is None:
            return
        line = {cell.number for cell in self.past.line}
        for checkpoint in (redo.checkpoint, *redo.others):
            if checkpoint.moment.is_of(line) and checkpoint.alive:
                self._kept.append(checkpoint)
            else:
                checkpoint.discard()
        redo.pairs.clear(0)
        self.rewrite()

    async def redo(self) -> Undone:
        """Take back the last undo: variables, files, directory, environment and random state are as before it.

        It works until the next cell begins. What others have changed in files since the undo stays.

        Returns:
            The cells that count again, and what was done to files.

        Raises:
            CheckpointError: There is no undo to take back.
            SnapshotError: The files cannot be brought back; nothing was changed.
            StateError, LaunchError: As for `undo`.
        """
        async with self._cells.turn():
            redo = self._redos.last(self.past.begun)
            reverted: Reverted | None = None

            async def files(then: Then) -> None:
                nonlocal reverted
                assert redo.reverted is not None
                reverted = await self.files.redo(redo.reverted, then, Reason("redo"))

            def arrive() -> None:
                moment = redo.checkpoint.moment
                self._redos.remove_last()
                led = {redo.pairs.origin, *(pair.state for pair in redo.pairs.pairs)}
                for one in self.automatic.all():
                    if one.moment.state not in led:
                        one.discard()  # of a state that only looks at variables have made since
                self._kept += [*redo.others, redo.checkpoint]
                self._fresh, self.ended = redo.fresh
                self.past.come_back(moment.past, moment.state, redo.pairs)
                self.rewrite()

            bring = files if redo.reverted is not None and redo.reverted.actions else None
            await self._go_to(redo.checkpoint, "restore", bring, arrive)
            self.automatic.forget_files()
            return self._undone(redo.cells, reverted, "", [])

    def relieve(self) -> bool:
        """Free memory: drop the states that only a redo needs; return whether there was one."""
        return self._redos.drop()

    async def _begin_again(self, files: Callable[[Then], Awaitable[object]] | None) -> None:
        """Go back to the fresh kernel that preceded all cells of the line, and to its files."""
        move = self._starting_again = StartingAgain(self._kernels, self._cells.past)
        self.begin_going("", "undo")
        try:
            if files is None:
                await move.renew()
            else:
                async with stopped(self._kernels.current):
                    await files(move.renew)
        except BaseException:  # also a cancellation: a later host must not finish what has not happened
            if not move.begun:
                self.write("stayed")
            raise
        finally:
            self._starting_again = None

    # -- the trash -----------------------------------------------------------------------------------------------------

    async def trash(self) -> list[TrashEntry]:
        """Return what undo, redo, restore and adopt have replaced or removed in the workspace, newest first.

        It can be brought back for seven days (``CELLBLOCK_TRASH_DAYS``).

        Raises:
            FilesError: It cannot be read.
        """
        return await self.files.trashed()

    async def restore_trash(self, path: str = "", entry: str = "") -> Changes:
        """Copy files back from the trash to where they were. What is in their places is moved to the trash.

        Args:
            path: A file or folder, relative to the workspace; empty for everything in the entry.
            entry: The id of the entry; empty for the newest one that holds the path.

        Returns:
            Which files were written.

        Raises:
            FilesError: The trash does not hold that.
            SnapshotError: It cannot be restored; nothing was changed.
            StateError: As for `execute`.
        """
        if not isinstance(path, str) or not isinstance(entry, str):
            raise InvalidInputError(f"path and entry must be texts, not {path!r:.100} and {entry!r:.100}")
        async with self._cells.turn():
            changes = await self.files.put_back(entry, "/".join(part for part in path.split("/") if part not in ("", ".")))
        self.automatic.files_changed()
        return changes

    def outside(self, since: float) -> list[str]:
        """Return the outside calls that were allowed since a time (`time.monotonic`), including those of adopted branches."""
        return [call for at, call in self._adopted if at >= since] + self._outside(since)

    def files_of_branches(self, files: FilesMode | None) -> FilesMode:
        """Return how the files of branches are handled; None for the default."""
        if files == "copy" and not self.files.own:
            raise InvalidInputError("files='copy' needs a session with a working_dir of its own: this one has none")
        return files or ("copy" if self.files.own else "shared")

    def take(self, checkpoint: Checkpoint, branch: Checkpoints) -> None:
        """Make a branch's checkpoint this session's, and record it: a later host can finish the way to it."""
        branch.forget(checkpoint)
        branch.record.settle()  # a later host must not find it in both
        checkpoint.belongs_to(self)
        self._kept.append(checkpoint)
        self.rewrite()

    def take_over(self, branch: Checkpoints) -> None:
        """Take over the checkpoints and outside calls of an adopted branch: its cells can be undone here from now on."""
        now = time.monotonic()
        self._adopted.extend((now, call) for call in branch.outside(0.0))
        line = {cell.number for cell in self._cells.past.line[:-1]}
        # The branch also has one of the state that it began with. That of a fresh kernel needs none. If both have the same
        # files, the branch's cells count as somebody else to this session, whose own checkpoint has files of after them.
        own = {one.moment.state: one for one in self.automatic.all()}
        known = {*own, self._fresh} if branch.branch is not None else set[int]()
        earlier = [one for one in branch.automatic.all() if one.moment.is_of(line) and one.moment.state not in known]
        for checkpoint in earlier:
            if (same := own.get(checkpoint.moment.state)) is not None:
                same.discard()
            branch.forget(checkpoint)
            checkpoint.belongs_to(self)
        self._kept += earlier
        self.automatic.drop_surplus()
        self.rewrite()  # the states of the branch are not in this session's past

    async def begin_with(self, beginning: Beginning) -> Kernel:
        """Make the session's first kernel from a checkpoint."""
        checkpoint = beginning.checkpoint
        self.check(checkpoint)
        files = checkpoint.snapshot

        async def bring(then: Then) -> None:
            assert files is not None
            await self.files.restore(files, then, Reason("restore"))

        began = Instant.before_changes()
        move = (self.resuming, self.automatic, self._cells.past, None if files is None else bring, began)
        kernel = await GoingBack(checkpoint, *move, beginning=beginning).prepare()
        self.go_to_memory_of(checkpoint, began)
        self.begin_with_line()
        return kernel

    def go_to_memory_of(self, checkpoint: Checkpoint, began: Instant) -> None:
        """Handle that the kernel continues from a checkpoint, while files stay as they are; see `Past.go_to`."""
        past = self._cells.past
        past.begun += 1
        past.go_to(checkpoint.moment.past, checkpoint.moment.state, began)
        if checkpoint.moment.copy.pending:
            past.goes_on_changing()

    def begin_with_line(self) -> None:
        """Handle that the session begins with cells that another one has run: it has no checkpoints from before them."""
        for one in self.automatic.all():  # made while a saved session was being loaded
            one.discard()
        self._begun_with = {cell.number for cell in self._cells.past.line}
        self.write("begun with", self.begun_with)

    def begin_after_another(self) -> None:
        """Continue with the kernel of a killed process whose states are unknown."""
        self.ended = _ENDED

    def begin_going(self, checkpoint: str, way: str) -> Instant:
        """Record, before doing anything, that the session goes to another state; return when.

        Args:
            checkpoint: The id of the checkpoint; empty: a fresh kernel.
            way: Why; see `recalled.Way`.
        """
        began = Instant.before_changes()
        self.write("going", checkpoint, way, began)
        self.record.settle()
        return began

    async def about_to_begin_anew(self) -> None:
        """Record that a fresh kernel is about to be started."""
        # Again, if all cells are being undone: a kernel that died may have been replaced meanwhile, which is recorded, too.
        self.begin_going("", "fresh" if self._starting_again is None else "undo")
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
            self.automatic.turn_ended()

    def begin_anew(self, kernel: Kernel) -> None:
        """Handle a fresh kernel."""
        if self._starting_again is not None:
            self._starting_again.leave()  # recorded in one piece with the fresh kernel: a host may be killed in between
        else:
            self.past.begun += 1
        self.resuming.serving = kernel.family
        self._cells.past.begin_anew()
        self._fresh, self.ended = self._cells.past.state, ""
        self._begun_with.clear()
        self.automatic.begin_anew()

    # -- the end -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Drop the automatic checkpoints and all files, before the session ends. It can be repeated."""
        await self.automatic.close()
        self._redos.drop()
        self._kept.clear()
        await self.files.close()
