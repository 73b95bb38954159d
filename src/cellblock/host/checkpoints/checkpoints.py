"""The checkpoints of one session: create, store and restore."""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from cellblock.errors import CellblockError, CheckpointError, InvalidInputError, StateError
from cellblock.host.checkpoints.automatic import AutomaticCheckpoints
from cellblock.host.checkpoints.checkpoint import (
    Checkpoint,
    CheckpointList,
    Origin,
    Redo,
    check_same_sandbox,
    find_checkpoint,
    stopped,
)
from cellblock.host.exchange import survey
from cellblock.host.kernels.pairs import Instant
from cellblock.host.kernels.state_events import Abandoned, Called, Forked, Stayed, Undid, Way
from cellblock.host.options import kind_of
from cellblock.host.snapshots.trash import Entry, Reason
from cellblock.host.snapshots.undo import Interval
from cellblock.model.checkpoints import Changes, FileChanges, FilesMode, StateChanges, TrashEntry

if TYPE_CHECKING:
    from cellblock.host.checkpoints.budget import Budget
    from cellblock.host.checkpoints.checkpoint import Beginning, Resuming
    from cellblock.host.checkpoints.workspace_snapshots import Bring, CheckpointFiles, Then
    from cellblock.host.kernels.cells import Cells
    from cellblock.host.kernels.family import Copy
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.kernels.kernel_slot import KernelSlot
    from cellblock.host.kernels.session_state import SessionState
    from cellblock.host.kernels.state_events import Saved
    from cellblock.host.snapshots.snapshots import Reverted
    from cellblock.model import HistoryEntry
    from cellblock.model.variables import Survey

T = TypeVar("T")
Before: TypeAlias = Callable[[], Awaitable[None]]
"""Called before a session restores a state, once that is certain."""

_MAX_NAME = 200
GOES_BACK = "The session restores an earlier state."
_ENDED = "the checkpoints of earlier cells ended with the process that made them, which was killed"
_COMPARING = 2.0
"""Time limit for hashing the values of each of two states. Values beyond it count as possibly changed."""


class Checkpoints(CheckpointList):
    """The checkpoints of one `Session`.

    Attributes:
        automatic: Automatic checkpoints.
        kernels: The session's kernels.
        resuming: Creates kernels from checkpoints.
        ended: Why earlier cells have no checkpoints, if the session was taken over from a killed process.
        crashes: Replaces dead kernels from checkpoints.
    """

    def __init__(
        self,
        origin: Origin,
        cells: Cells,
        kernels: KernelSlot,
        files: CheckpointFiles,
        resuming: Resuming,
        budget: Budget,
    ) -> None:
        super().__init__(origin, cells, files)
        self._name = origin.wanted.session
        self._wanted = origin.wanted
        self._budget = budget
        self.kernels = kernels
        self.ended = ""
        self.resuming = resuming
        self.automatic = AutomaticCheckpoints(self._name, self, resuming, budget, kernels, kind_of(origin.options.recovery))
        self.crashes = self.automatic.crashes

    # -- making --------------------------------------------------------------------------------------------------------

    async def checkpoint(self, name: str = "", *, files: FilesMode = "shared") -> Checkpoint:
        """Create a checkpoint of the session's memory, which can be restored any number of times.

        The kernel is forked, and the copy waits. A checkpoint takes a few milliseconds, and memory only for later changes.
        Threads and socket connections are lost in a restore, because a copy of a process cannot have them
        (docs/checkpoints.md).

        Args:
            name: The checkpoint's name.
            files: Whether the checkpoint includes the workspace's files (``copy``) or not (``shared``).

        Raises:
            SnapshotError: The files cannot be saved. No checkpoint is created.
            CheckpointError: The state would not survive a copy, for example because of a library with its own threads. The
                message names it and gives advice. The session continues.
            InvalidInputError, StateError, LaunchError, KernelDiedError: As for `execute`.
        """
        if not isinstance(name, str) or len(name) > _MAX_NAME:
            raise InvalidInputError(f"a checkpoint's name must be a text of at most {_MAX_NAME} characters, not {name!r:.250}")
        if files not in ("shared", "copy"):
            raise InvalidInputError(f"files must be 'shared' or 'copy', not {files!r}")
        return await self._make(name, files)

    async def passing_checkpoint(self, files: FilesMode) -> Checkpoint:
        """Create a temporary checkpoint, for one restore or for branches."""
        return await self._make("", files, passing=True)

    async def _make(self, name: str, files: FilesMode, *, passing: bool = False) -> Checkpoint:
        async with self.cells.turn():
            try:
                checkpoint = await self.copy(await self.kernels.live(), name=name, automatic=False, passing=passing)
                assert checkpoint is not None
                if files == "copy":
                    try:
                        checkpoint.hold(kept := await self.files.take(), self.files.drop)
                        self.past.look(self.files.hold(kept))
                    except BaseException:  # includes cancellation: nothing else owns the checkpoint
                        checkpoint.discard()
                        raise
                return checkpoint
            finally:
                self.automatic.turn_ended()  # again: this checkpoint may be missing, or dropped before the next cell

    async def diff(self, checkpoint: Checkpoint | str, until: Checkpoint | str | None = None) -> StateChanges:
        """Return the changes since a checkpoint: new, changed and deleted variables.

        Workspace files are compared too, if the checkpoint has them (``files="copy"``). Values are compared by hashes of their
        pickles, in a temporary kernel from the checkpoint. A value is listed as unknown if it cannot be pickled, such as a
        lock, or if pickling takes more than two seconds.

        Args:
            checkpoint: A checkpoint of any session of the same host, or the name or id of one of this session.
            until: A later checkpoint; None for the current state.

        Raises:
            CheckpointError: A checkpoint was dropped, or belongs to another host.
            SnapshotError: The files cannot be read.
            StateError, LaunchError, KernelDiedError, ExecutionTimeoutError: As for `execute`, but raised.
        """
        from cellblock.model.variables import diff_variables  # rarely used

        checkpoint = self.find(checkpoint)
        last = None if until is None else self.find(until)
        try:
            after = await (survey(self.cells.run_to_look, _COMPARING) if last is None else self._survey(last))
            before = await self._survey(checkpoint)
            files = await self._files_between(checkpoint, last)
        except CellblockError:
            for one in (checkpoint, *([] if last is None else [last])):
                one.check()  # nothing failed: it was dropped meanwhile, or the session was closed
            raise
        return StateChanges(diff_variables(before, after), files)

    async def _files_between(self, checkpoint: Checkpoint, last: Checkpoint | None) -> FileChanges | None:
        """Return file changes since a checkpoint; None unless both states have files."""
        if checkpoint.snapshot is None or (last is not None and last.snapshot is None):
            return None
        return await self.files.diff(checkpoint.snapshot, None if last is None else last.snapshot)

    async def _survey(self, checkpoint: Checkpoint) -> Survey:
        """Return the variables of a checkpoint, read in a temporary kernel."""
        kernel = await self.resuming.look_at(checkpoint)
        try:
            return await survey(functools.partial(self.cells.run_elsewhere, kernel), _COMPARING)
        finally:
            await kernel.discard()  # its exit handlers and buffered text belong to the session

    @property
    def crowded(self) -> bool:
        """Whether a second kernel with all of the session's variables could exceed the memory limit."""
        kernel = self.kernels.current
        limit = self._wanted.policy.resources.memory if self._wanted.tier.sandboxed else None
        return kernel is not None and limit is not None and 2 * kernel.memory.used > limit

    def check_second_kernel(self) -> None:
        """Check that the session can have a second kernel with other variables, while its own waits.

        Raises:
            StateError: It cannot. The message says what to do.
        """
        advice = "restart it first (reset), which ends its variables"
        if self.crowded:
            raise StateError(f"{self._name} uses more than half of its memory limit: {advice}, or raise the limit (memory=)")
        if self.kernels.current is not None and not self.resuming.can_double(self.kernels.current):
            raise StateError(
                f"{self._name} has isolate='srt' and launch='spawn', where only one kernel can run in a directory: {advice}"
            )

    @property
    def lasting(self) -> bool:
        """Whether a later host may continue the session."""
        return self._wanted.kept is not None

    @property
    def begins_fresh(self) -> bool:
        """Whether a fresh kernel undoes all cells: the session began with one, not with another session's cells."""
        return self.past.fresh != 0 and not self.past.begun_with

    def note_outside(self, call: str) -> None:
        """Record an external call that was just approved."""
        self.past.commit(Called(time.monotonic(), call))

    # -- of an earlier host --------------------------------------------------------------------------------------------

    def recall(self, state: SessionState, copies: Mapping[str, Copy]) -> None:
        """Continue with an earlier host's state, which has this host's snapshots. Copies are by the checkpoints' ids.

        Checkpoints whose copies have ended remain in the state, without files.
        """
        self.cells.past = state
        self.automatic.take_past()
        for saved in [*state.checkpoints.values()]:
            if (checkpoint := self._recalled(saved, copies)) is not None:
                self._kept.append(checkpoint)
            else:
                state.checkpoints[saved.id] = saved._replace(files=None)
        for undid in state.redos:
            undid.pairs.release = self.files.drop
            checkpoints = [one for saved in undid.saved if (one := self._recalled(saved, copies)) is not None]
            files: tuple[Interval, Entry] | None = None
            if undid.trash is not None and undid.before is not None and undid.after is not None:
                files = Interval(undid.before.root, undid.after.root, ()), Entry.of([*undid.trash])
            self._redos.append(Redo(undid, checkpoints, files=files))
        for checkpoint in (*self.of_redos(), *self.automatic.all()[:-1]):
            self._budget.spend(checkpoint)
        newest = max((one for one in self._kept if one.snapshot is not None), key=lambda one: one.moment.state, default=None)
        known = self.past.pairs.latest if newest is None else newest.snapshot
        if known is not None:
            self.files.begin_with(known)

    def _recalled(self, saved: Saved, copies: Mapping[str, Copy]) -> Checkpoint | None:
        """Return an earlier host's checkpoint with its files; None if its copy has ended."""
        copy = copies.get(saved.id)
        if copy is None or copy.gone.done():
            if saved.files is not None:
                self.files.drop(saved.files)
            return None
        copy.pending = saved.pending
        checkpoint = self._checkpoint(saved, copy)
        if saved.files is not None:
            checkpoint.hold(saved.files, self.files.drop)
        return checkpoint

    # -- restore -------------------------------------------------------------------------------------------------------

    def find(self, checkpoint: Checkpoint | str) -> Checkpoint:
        """Return a checkpoint that this session can use, by object, name or id.

        Raises:
            InvalidInputError, CheckpointError: The name is unknown, or as for `check`.
        """
        found = find_checkpoint(self.all(), checkpoint) if isinstance(checkpoint, str) else checkpoint
        self.check(found)
        return found

    async def restore(self, checkpoint: Checkpoint | str, before: Before | None = None, operation: str = "restore") -> Changes:
        """Implement `Session.restore`. `before` is called once the restore is certain."""
        checkpoint = self.find(checkpoint)
        async with self.cells.turn(stop=GOES_BACK):
            self.check(checkpoint)
            if before is not None:
                await before()
            return await self.restore_to(checkpoint, operation)

    async def restore_to(self, checkpoint: Checkpoint, operation: str) -> Changes:
        """Restore a checkpoint's state, with its files if it has some, in the session's turn."""
        return await self.go_to(checkpoint, "restore", self._files_of(checkpoint, operation)) or Changes()

    def _files_of(self, checkpoint: Checkpoint, operation: str) -> Bring[Changes] | None:
        """Return what restores a checkpoint's files, if it has some."""
        snapshot = checkpoint.snapshot
        return None if snapshot is None else functools.partial(self.files.restore, snapshot, why=Reason(operation))

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that this session can use a checkpoint.

        Raises:
            InvalidInputError, CheckpointError: It is not a checkpoint, was dropped, or belongs to another host.
        """
        if not isinstance(checkpoint, Checkpoint):
            raise InvalidInputError(f"checkpoint must be a checkpoint, its name or its id, not {checkpoint!r:.100}")
        checkpoint.check()
        if checkpoint.moment.origin.host is not self.origin.host:
            raise CheckpointError(
                "the checkpoint belongs to another host; a session can restore only checkpoints of its own host"
            )
        check_same_sandbox(checkpoint.moment.origin.wanted, self._wanted)

    async def go_to(
        self,
        checkpoint: Checkpoint,
        way: Way,
        files: Bring[T] | None,
        arrive: Callable[[], None] | None = None,
        since: int = 0,
    ) -> T | None:
        """Restore a checkpoint's state in the session's turn. Return what `files` returns.

        Args:
            checkpoint: The checkpoint.
            way: What a later host must finish.
            files: Restores files; None to leave them unchanged.
            arrive: Records the new state, instead of `SessionState.go_to`.
            since: As for `Going`.
        """
        found: T | None = None

        async def bring(then: Then) -> None:
            nonlocal found
            if files is None:
                await then()
            else:
                found = await files(then)

        began = self.begin_going(checkpoint.id, way, since=since)
        prepare = functools.partial(self.resuming.prepare, checkpoint, bring)
        try:
            async with stopped(self.kernels.current):
                await self.kernels.swap(prepare, functools.partial(self._gone_to, checkpoint, began, arrive))
        except BaseException:
            self.past.commit(Stayed())
            raise
        finally:
            self.automatic.turn_ended()  # this one may be dropped before the next cell, or have no files
        return found

    def _gone_to(self, checkpoint: Checkpoint, began: Instant, arrive: Callable[[], None] | None) -> None:
        """Record a checkpoint's state as the session's, after the kernel was replaced."""
        moment = checkpoint.moment
        if arrive is not None:
            arrive()
        else:
            branch = self.automatic.pairs_of_branch(moment.history, moment.state)
            self.past.go_to(moment.past, moment.state, began, branch, tasks=moment.copy.pending)
        if moment.copy.pending:
            self.past.goes_on_changing()
        self.automatic.gone_to(checkpoint)
        self.past.log.settle()

    async def restore_fresh(self, files: Bring[T] | None) -> T | None:
        """Restore the fresh kernel before all cells, and its files. Return what `files` returns."""
        left, begun = [cell.number for cell in self.past.line], False
        self.begin_going("", "undo")

        async def renew() -> None:
            nonlocal begun
            begun = True
            try:
                await self.kernels.renew(force=True)
            finally:  # also on cancellation or failure: the cells' state is lost with the kernel
                self.past.commit(Abandoned(left))

        self.resuming.go_to(self.past.fresh)
        try:
            if files is None:
                await renew()
                return None
            async with stopped(self.kernels.current):
                return await files(renew)
        except BaseException:  # includes cancellation: a later host must not finish it
            if not begun:
                self.past.commit(Stayed())
            raise

    @property
    def _undoes_all(self) -> bool:
        """Whether all cells are being undone."""
        return self.past.going is not None and (self.past.going.checkpoint, self.past.going.way) == ("", "undo")

    # -- redo ----------------------------------------------------------------------------------------------------------

    def prepare_redo(self, target: Checkpoint | None, present: Checkpoint | None) -> Redo | None:
        """Set aside what a redo needs, before the undo begins; None if the current state has no checkpoint.

        The record lists it until the undo is done: if this host is killed meanwhile, the next one may stay in this state.
        """
        if present is None or self._wanted.tier.wrapped:
            return None
        state = self.past.fresh if target is None else target.moment.state
        later = [one for one in self.automatic.all() if one.moment.state > state and one not in (target, present)]
        for checkpoint in (present, *later):
            if checkpoint in self._kept:
                self._kept.remove(checkpoint)
        pairs = self.past.pairs.copied(self.files.hold)
        pairs.release = self.files.drop
        return Redo(Undid((), pairs, state, self.past.fresh), [*later, present], self.ended)

    def forget_redo(self, redo: Redo | None) -> None:
        """Restore what was set aside, after a failed undo."""
        if redo is None:
            return
        line = {cell.number for cell in self.past.line}
        for checkpoint in redo.checkpoints:
            if checkpoint.moment.is_of(line) and checkpoint.alive:
                self._kept.append(checkpoint)
            else:
                checkpoint.discard()
        redo.undid.pairs.clear(0)

    def keep_redo(self, redo: Redo, reverted: Reverted | None) -> None:
        """Keep what was set aside after a successful undo, with what was done to files."""
        ids = tuple(one.id for one in redo.checkpoints if one.id in self.past.checkpoints)
        if redo.checkpoints[-1].id not in ids:  # it was dropped meanwhile
            redo.drop()
            return
        undid = redo.undid._replace(checkpoints=ids)
        if reverted is not None and reverted.actions:
            redo.files = reverted.back, reverted.entry
            before, after = self.files.hold_parts(reverted.back) if self.lasting else (None, None)
            undid = undid._replace(before=before, after=after, trash=reverted.entry.described)
        self.past.commit(undid)
        self.past.log.settle()
        redo.undid = self.past.redos[-1]
        self._redos.append(redo)

    def last_redo(self) -> Redo:
        """Return the last undo, if it can be reverted.

        Raises:
            CheckpointError: No undo can be reverted, or the copy of the last state has ended.
        """
        if not self.redos:
            raise CheckpointError(
                "there is no undo to reverse: redo works until the next cell begins. It also ends if memory is short, or if "
                "the process that runs the session is killed during the undo. Files that an undo replaced are in the trash"
            )
        redo = self.redos[-1]
        if not redo.checkpoints[-1].alive:
            self.drop_redos()
            raise CheckpointError("the undo cannot be reversed: the process with that state has ended, or memory was short")
        return redo

    def of_redos(self) -> list[Checkpoint]:
        """Return the checkpoints of undone states that are not dropped yet."""
        return [one for redo in self._redos for one in redo.checkpoints]

    async def go_to_undone(self, redo: Redo, files: Bring[T] | None) -> T | None:
        """Restore the state before the last undo, as by `go_to`. A later host can finish it."""
        self.past.log.rewrite(self.past.to_come_back())
        try:
            arrive = functools.partial(self.come_back, redo)
            return await self.go_to(redo.checkpoints[-1], "redo", files, arrive, redo.undid.since)
        except BaseException:  # includes cancellation: nothing was changed
            self.past.log.rewrite()
            raise

    def come_back(self, redo: Redo) -> None:
        """Record the state before the last undo as the session's, after its kernel was restored."""
        self._redos.pop()
        pairs = redo.undid.pairs
        led = {pairs.origin, *(pair.state for pair in pairs.pairs)}
        for one in self.automatic.all():
            if one.moment.state not in led:
                one.discard()  # a state from requests that only read variables
        self.ended = redo.ended
        self.past.come_back()
        redo.drop_files()
        self._own(redo.checkpoints)

    # -- the trash -----------------------------------------------------------------------------------------------------

    async def trash(self) -> list[TrashEntry]:
        """Return what undo, redo, restore and adopt replaced or removed in the workspace, newest first.

        Entries can be restored for seven days (``CELLBLOCK_TRASH_DAYS``).

        Raises:
            FilesError: The trash cannot be read.
        """
        return await self.files.trashed()

    async def restore_trash(self, path: str = "", entry: str = "") -> Changes:
        """Restore files from the trash to their original paths. Files that they replace are moved to the trash.

        Args:
            path: A file or folder, relative to the workspace; empty for everything in the entry.
            entry: The id of the entry; empty for the newest one that contains the path.

        Returns:
            The files that were written.

        Raises:
            FilesError: The trash does not contain the path or entry.
            SnapshotError: The files cannot be restored. Nothing was changed.
            StateError: As for `execute`.
        """
        if not isinstance(path, str) or not isinstance(entry, str):
            raise InvalidInputError(f"path and entry must be texts, not {path!r:.100} and {entry!r:.100}")
        async with self.cells.turn():
            changes = await self.files.put_back(entry, "/".join(part for part in path.split("/") if part not in ("", ".")))
        self.automatic.files_changed()
        return changes

    def outside(self, since: float) -> list[str]:
        """Return the approved external calls since a time (`time.monotonic`), including calls of adopted branches."""
        return [call for at, call in self.past.outside if at >= since]

    def files_of_branches(self, files: FilesMode | None) -> FilesMode:
        """Return how the files of branches are handled; None for the default."""
        if files == "copy" and not self.files.own:
            raise InvalidInputError("files='copy' needs a session with a working_dir of its own: this one has none")
        return files or ("copy" if self.files.own else "shared")

    def take(self, checkpoint: Checkpoint, branch: Checkpoints) -> None:
        """Transfer a branch's checkpoint to this session, and record it, so that a later host can finish the restore."""
        branch.forget(checkpoint)
        branch.past.log.settle()  # a later host must not find it in both
        self._own([checkpoint])

    def _own(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Take over checkpoints of another session, or of an undone state. Record them in one piece."""
        for checkpoint in checkpoints:
            checkpoint.belongs_to(self)
            self._kept.append(checkpoint)
            self.past.checkpoints[checkpoint.id] = checkpoint.saved
        self.past.log.rewrite()

    def take_over(self, branch: Checkpoints) -> None:
        """Take over the checkpoints and external calls of an adopted branch, so that its cells can be undone here."""
        now = time.monotonic()
        self.past.outside.extend((now, call) for call in branch.outside(0.0))
        line = {cell.number for cell in self.cells.past.line[:-1]}
        # The branch also has a checkpoint of its initial state. A fresh kernel's state needs none. If both checkpoints have
        # the same files, the branch's cells count as external changes to this session, whose own checkpoint has files from
        # after them.
        own = {one.moment.state: one for one in self.automatic.all()}
        known = {*own, self.past.fresh} if branch.origin.branch is not None else set[int]()
        earlier = [one for one in branch.automatic.all() if one.moment.is_of(line) and one.moment.state not in known]
        for checkpoint in earlier:
            if (same := own.get(checkpoint.moment.state)) is not None:
                same.discard()
            branch.forget(checkpoint)
        self._own(earlier)
        self.automatic.drop_surplus()

    async def begin_with(self, beginning: Beginning) -> Kernel:
        """Create the session's first kernel from a checkpoint."""
        checkpoint = beginning.checkpoint
        self.check(checkpoint)
        began = Instant.before_changes()
        kernel = await self.resuming.prepare(checkpoint, self._files_of(checkpoint, "restore"), beginning)
        checkpoint.moment.history.commit(Forked(checkpoint.moment.state))
        self.go_to_memory_of(checkpoint, began)
        self.begin_with_line()
        return kernel

    def begin_with_line(self) -> None:
        """Record that the session begins with another session's cells, which have no checkpoints here."""
        for one in self.automatic.all():  # created while a saved session was loaded
            one.discard()
        self.past.begun_with = {cell.number for cell in self.past.line}
        self.past.log.rewrite()

    def begin_loaded(self, kernel: Kernel, cells: Iterable[HistoryEntry]) -> None:
        """Handle a kernel with the state of a saved session.

        The change is recorded in one piece, before anything of the earlier state is freed: a host may be killed in between.
        """
        past, replaced = self.past, self.automatic.all()
        pairs = past.pairs.copied(self.files.hold)
        past.begin_anew()
        past.replace(cells)
        past.kernel, past.begun_with = kernel.number, {cell.number for cell in past.line}
        for one in replaced:
            past.checkpoints.pop(one.id, None)
        past.log.rewrite()
        pairs.release = self.files.drop
        pairs.clear(0)
        self.ended = ""
        self.automatic.begin_anew()

    def begin_after_another(self) -> None:
        """Continue with a killed process's kernel whose states are unknown."""
        self.ended = _ENDED

    async def about_to_begin_anew(self) -> None:
        """Record that a fresh kernel is about to start."""
        # Repeated if all cells are being undone: a dead kernel may have been replaced meanwhile, which is also recorded.
        self.begin_going("", "undo" if self._undoes_all else "fresh")
        if self._wanted.tier.wrapped:
            # One srt at a time: a concurrent one would mistake the other's workspace mount points for files, and leave them
            # there.
            families = {one.moment.copy.family for one in self.automatic.all()}
            for one in self.automatic.all():
                one.discard()
            for family in families:
                await family.settle()

    def begin(self) -> None:
        """Handle the session's first kernel: make sure that its next cell can be undone."""
        if not self.fresh:
            self.automatic.turn_ended()

    def begin_anew(self) -> None:
        """Handle a fresh kernel."""
        if self._undoes_all:  # recorded in one piece with the fresh kernel: a host may be killed in between
            self.past.commit(Abandoned([cell.number for cell in self.past.line]))
        self.past.begin_anew()
        self.ended = ""
        self.automatic.begin_anew()

    async def close(self) -> None:
        """Drop the automatic checkpoints and all files, before the session ends. Idempotent."""
        await self.automatic.close()
        self.drop_redos()
        self._kept.clear()
        await self.files.close()
