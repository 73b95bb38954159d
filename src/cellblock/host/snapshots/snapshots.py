"""Takes, compares and restores snapshots of one workspace."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, overload

from cellblock.common.open_flags import held
from cellblock.errors import SnapshotError
from cellblock.host.snapshots import restore as restoring
from cellblock.host.snapshots.beneath import open_parent
from cellblock.host.snapshots.content import digest_of
from cellblock.host.snapshots.entries import Entry as TreeEntry
from cellblock.host.snapshots.entries import Folder
from cellblock.host.snapshots.file import File, facts
from cellblock.host.snapshots.ignored import Ignored
from cellblock.host.snapshots.journal import Journal
from cellblock.host.snapshots.plan import Plan
from cellblock.host.snapshots.store import Store
from cellblock.host.snapshots.times import Spans, first_changed, first_left_out_changed, first_unkept_changed
from cellblock.host.snapshots.trash import Entry, Reason, Trash
from cellblock.host.snapshots.tree import Snapshot, SnapshotLimits, differences
from cellblock.host.snapshots.undo import Interval, UndoPlan, plan_redo, plan_restore, plan_undo
from cellblock.host.snapshots.walk import StoppedError, Walk
from cellblock.host.snapshots.watch import LostError, UnwatchableError, Watch
from cellblock.model.checkpoints import MAX_FILE_CHANGES, Changes, FileAction, FileChange, FileChanges

_LOG = logging.getLogger("cellblock.snapshots")
_TRIES = 5
"""How often a restore is retried because the workspace is being changed."""

_RESTORE = Reason("restore")
_MORE = 10
"""How many times as many files are only looked at, including those that snapshots leave out because of their names."""

_LOOKS_UNWATCHED, _FOR_GOOD = 16, sys.maxsize
"""How many times to look without watches after they were lost: setting up all watches takes longer than a look."""


class Snapshots:
    """The snapshots of one workspace. Methods block, and any thread can call them.

    They raise `SnapshotError` if the workspace cannot be read, or if a restore, undo or redo fails. Then nothing was changed,
    unless the message says otherwise.

    A snapshot of one workspace can be restored in another, if both share a store.

    Attributes:
        limits: The limits of a snapshot.
        trash: Files that restores replaced or removed.
    """

    def __init__(
        self,
        workspace: Path,
        store: Store,
        journals: Path,
        limits: SnapshotLimits | None = None,
        label: str = "",
    ) -> None:
        """Open the workspace once to identify it. Its content is not read yet.

        Args:
            workspace: The workspace, absolute and without links. The session's code may change its content at any time.
            store: Stores the contents of files.
            journals: A directory for the journals of restores, shared by all programs of this user. No session can write to
                it.
            limits: The limits of a snapshot.
            label: The session's name, for the trash.

        Raises:
            SnapshotError: The workspace cannot be opened.
        """
        self._workspace = str(workspace)
        self._store = store
        self._journal = Journal(journals, workspace)
        self.trash = Trash(self._workspace, label)
        self.limits = limits or SnapshotLimits()
        self._lock = threading.Lock()
        self._known: Folder | None = None
        self._generation = store.generation
        """The store's value when the known state was saved."""
        self._watch: Watch | None = None
        self._watched_with: SnapshotLimits | None = None
        self._inherited = False
        """Whether the last look was by another process."""
        self._unwatched = 0
        """How many more looks are done without watches."""
        self._top: os.stat_result | None = None
        with self._opened("use") as top:
            self._top = os.fstat(top)

    def begin_with(self, snapshot: Snapshot) -> None:
        """Use a snapshot as the last known state, unless it was dropped."""
        with self._lock, contextlib.suppress(SnapshotError):
            self._store.check(snapshot)
            self._know(snapshot.root)
            self._inherited = True

    def touched(self) -> bool:
        """Return, without blocking, whether something is known to have changed since the last `take` with `hurry`.

        True for an unwatched workspace, False while it is being read.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._watch.touched() if self._watch is not None else self._inherited or self._known is not None
        finally:
            self._lock.release()

    @overload
    def take(self) -> Snapshot: ...
    @overload
    def take(self, limits: SnapshotLimits, stopped: Callable[[], bool], hurry: Callable[[], bool]) -> Snapshot | None: ...
    def take(
        self,
        limits: SnapshotLimits | None = None,
        stopped: Callable[[], bool] = lambda: False,
        hurry: Callable[[], bool] | None = None,
    ) -> Snapshot | None:
        """Take a snapshot. Files unchanged since the last one are not read.

        Args:
            limits: Other limits, for this snapshot only.
            stopped: Called periodically and at the end: whether to give up.
            hurry: Called before each file: whether to read only metadata from now on (`Walk`). For frequent snapshots: the
                workspace is then watched until `close`, so that only changes are examined.

        Returns:
            The snapshot, stored until `drop`; None if `stopped` said so.

        Raises:
            SnapshotError: The snapshot cannot be stored. No part of it is.
        """
        added: list[bytes] = []

        def add(source: int, limit: int) -> tuple[bytes, int]:
            found = self._store.add(source, limit, self._workspace)
            added.append(found[0])
            return found

        self._store.renew()
        with self._lock, self._opened("save the files of") as top:
            if (generation := self._store.generation) != self._generation:
                self._known, self._generation = None, generation  # its contents are lost
            # The first look must read much. Its findings speed up the next one, even if they are not from a single moment.
            patient = stopped if self._known is not None else lambda: False

            def walk(watch: Watch | None) -> Walk:
                return Walk(limits or self.limits, add, stopped=patient, hurry=hurry, watch=watch)

            try:
                # With `hurry`, snapshots are frequent.
                root = walk(None).whole(top, self._known) if hurry is None else self._look(top, limits or self.limits, walk)
                if hurry is None and self._watch is not None:
                    self._watch.forget()
                self._know(root)
                self._inherited = False
                if stopped():
                    return None
                snapshot = Snapshot(root)
                if generation != self._store.generation:
                    raise SnapshotError(f"another program removed {self._store.directory}: the next snapshot makes it again")
                self._store.keep(snapshot)
            except StoppedError:
                return None
            finally:
                for digest in added:
                    self._store.release_file(digest)
        return snapshot

    def _look(self, top: int, limits: SnapshotLimits, walk: Callable[[Watch | None], Walk]) -> Folder:
        """Examine the parts of the workspace that may have changed, or everything if these are unknown."""
        try:
            watch = self._watch = self._watched(top)
            if watch is None:
                return walk(None).whole(top, self._known)
            if self._watched_with != limits or self._known is None or self._known.totals.cut:
                watch.forget()
            self._watched_with = limits
            dirt = watch.begin()
            root = walk(watch).whole(top, self._known, dirt=dirt)
            watch.end(root)
        except LostError as error:
            _LOG.debug("all files of %s are read: %s", self._workspace, error)
            self._unwatch(_FOR_GOOD if isinstance(error, UnwatchableError) else _LOOKS_UNWATCHED)
        else:
            if root.totals.cut:
                self._unwatch(_LOOKS_UNWATCHED)  # the limits apply in the order in which everything is found
            if dirt is None or not root.totals.cut:
                return root
        os.lseek(top, 0, os.SEEK_SET)
        return walk(None).whole(top, self._known)

    def _watched(self, top: int) -> Watch | None:
        if self._watch is None and self._unwatched > 0:
            self._unwatched -= 1
            return None
        return self._watch or Watch(top, self._known.totals.entries if self._known else 0)

    def _unwatch(self, looks: int) -> None:
        """Stop watching, and do some looks without watches."""
        watch, self._watch, self._unwatched = self._watch, None, looks
        if watch is not None:
            watch.close()

    def restore(self, snapshot: Snapshot, then: Callable[[], object] = lambda: None, why: Reason = _RESTORE) -> Changes:
        """Restore a snapshot atomically. Identical files are not touched.

        Args:
            snapshot: A snapshot that was not dropped.
            then: Called when everything is in place. If it fails, the restore is rolled back.
            why: The reason shown in the trash.

        Returns:
            The changes made.
        """
        self._store.check(snapshot)

        walks: list[Walk] = []

        def plan(top: int) -> UndoPlan:
            for earlier in walks:
                earlier.tighten(top)
            walk, now = self._search(top, snapshot.root)
            walks.append(walk)
            return UndoPlan(Plan(now, snapshot.root), [], "", Interval(now, snapshot.root, ()))

        done = frozenset[str]()
        try:
            made, entry = self._carry_out(plan, then, why)
            done = frozenset(step.path for step in made.plan.steps if step.do == "mode")
        finally:  # restores the folders' modes
            if any(walk.loosened for walk in walks):
                with self._opened("restore the files of") as top:
                    for walk in walks:
                        walk.tighten(top, done)
        return _done(made.plan, entry)

    def undo(
        self, intervals: Sequence[Interval], then: Callable[[], object], why: Reason, *, partial: bool = False
    ) -> Reverted:
        """Undo file changes of cells (oldest first) atomically, except paths that others changed later.

        With `partial`, unrestorable paths are left unchanged. The other arguments are as for `restore`.
        """

        def plan(top: int) -> UndoPlan:
            made = plan_undo(top, intervals)
            if made.impossible and not partial:
                raise SnapshotError(made.impossible)
            return made

        return Reverted.of(*self._carry_out(plan, then, why))

    def redo(self, back: Interval, entry: Entry, then: Callable[[], object], why: Reason) -> Reverted:
        """Revert an undo, except paths that others changed later. For the arguments, see `plan_redo` and `restore`."""

        def plan(top: int) -> UndoPlan:
            made = plan_redo(top, back, entry)
            if made.impossible:
                raise SnapshotError(f"the undo cannot be reversed: {made.impossible}")
            return made

        return Reverted.of(*self._carry_out(plan, then, why, entry))

    def put_back(self, entry: Entry, path: str, why: Reason) -> Changes:
        """Restore something from the trash to its original path, or everything if the path is empty.

        What it replaces is moved to the trash. For `why`, see `restore`.
        """
        paths = [one for one, info in entry.files() if not path or one == path or one.startswith(f"{path}/")]
        ignored = Ignored(self.limits.ignore, self.limits.makeable)
        protected = {found for one in paths if (found := ignored.find(one)) is not None}

        def plan(top: int) -> UndoPlan:
            for one in protected:  # the session can create them, but not replace them
                with contextlib.suppress(FileNotFoundError), open_parent(top, one) as (parent, name):
                    os.lstat(name, dir_fd=parent)
                    raise SnapshotError(f"{one[:200]!r} cannot be restored: the session may not change it", path=one)
            return plan_restore(top, entry, paths)

        made, taken = self._carry_out(plan, lambda: None, why, entry)
        return _done(made.plan, taken)

    def unpack(self, files: Entry, then: Callable[[], object], why: Reason, until: int) -> None:
        """Move the files of an archive to the workspace. What they replace is moved to the trash.

        For `until`, see `Journal.write`. The other arguments are as for `restore`.
        """
        paths = [path for path, _ in files.files()]
        self._carry_out(lambda top: plan_restore(top, files, paths), then, why, files, until)

    def why_not_undoable(self, intervals: Sequence[Interval]) -> str:
        """Return why some change of the cells cannot be undone; empty if all can.

        Raises:
            SnapshotError: The workspace cannot be read, or an external change blocks the undo.
        """
        with self._opened("look at the files of") as top:
            return plan_undo(top, intervals).impossible

    def now(self, wanted: Snapshot, verb: str = "look at") -> Folder:
        """Return the current content, as far as a comparison with a snapshot needs it. Nothing is stored.

        Raises:
            SnapshotError: The workspace cannot be read. The message says that one cannot do this (`verb`) with its files.
        """
        with self._lock, self._opened(f"{verb} the files of") as top:
            walk, now = self._search(top, wanted.root)
            walk.tighten(top)
        return now

    def _carry_out(
        self,
        make: Callable[[int], UndoPlan],
        then: Callable[[], object],
        why: Reason,
        source: Entry | None = None,
        until: int | None = None,
    ) -> tuple[UndoPlan, Entry]:
        """Make a plan and carry it out. Retry if the workspace changes meanwhile."""
        entries = list[Entry]()
        with self._lock, self._opened("restore the files of") as top, self._journal.locked():
            restoring.recover(top, self._journal)
            rescued = restoring.Rescued(top)
            for _ in range(_TRIES):
                plan, entry = make(top), self.trash.new(why)
                entries.append(entry)  # one for each try: others may save a path again, and an entry has one version of it
                try:
                    if plan.plan.steps:
                        restoring.restore(top, plan.plan, self._store, self._journal, then, rescued, entry, source, until)
                    else:
                        then()
                except restoring.UnsettledError:
                    continue
                except BaseException:
                    if meanwhile := _meanwhile(entries, rescued):
                        _LOG.warning("the files of %s were not restored%s", self._workspace, meanwhile)
                    raise
                for path, where in rescued.files.items():
                    _LOG.warning("%s: %r could not be moved to the trash, and is in %r now", self._workspace, path, where)
                return plan._replace(impossible=". ".join(filter(None, (plan.impossible, _not_in_trash(rescued))))), entry
        done = "All changes were rolled back" if any(entry.taken for entry in entries) else "Nothing was changed"
        raise SnapshotError(
            f"the files of {self._workspace} cannot be restored, because something keeps changing them: stop what writes "
            f"there, then try again. {done}{_meanwhile(entries, rescued)}"
        )

    def diff(self, before: Snapshot, after: Snapshot | None = None) -> FileChanges:
        """Return the differences from a snapshot to a later one, or to the current workspace.

        Raises:
            SnapshotError: A snapshot was dropped, or the workspace cannot be read.
        """
        self._store.check(before)
        if after is not None:
            self._store.check(after)
            return _changes(before.root, after.root)
        return _changes(before.root, self.now(before, "compare"))

    def first_changed(self, spans: Spans) -> str | None:
        """Return a workspace path last changed within some time intervals, or None."""
        with self._opened("look at the files of") as top:
            paths = (path for path in self.limits.ignore if path.startswith("/"))
            return first_changed(top, spans, Ignored(paths), self.limits.max_files * _MORE)

    def first_unkept_changed(self, before: Snapshot, spans: Spans) -> str | None:
        """Return a changed file that cannot be restored because its content was not stored, or None."""
        with self._opened("look at the files of") as top:
            return first_unkept_changed(top, before.root, spans)

    def first_left_out_changed(self, before: Snapshot, spans: Spans) -> tuple[str, str] | None:
        """Return a changed path that the session can write and snapshots exclude, and its location."""
        with self._opened("look at the files of") as top:
            return first_left_out_changed(top, before.root, spans)

    def drop(self, snapshot: Snapshot) -> None:
        """Drop a snapshot, and remove content that no other one needs. Idempotent."""
        self._store.drop(snapshot)

    def recover(self, kernel: int | None = None) -> bool:
        """Finish a killed process's restore, or roll it back, before a session starts.

        Args:
            kernel: The number of the session's kernel, if an earlier process left it.

        Returns:
            Whether there was one.

        Raises:
            SnapshotError: The restore cannot be finished now.
        """
        with self._lock, self._opened("finish restoring the files of") as top, self._journal.locked():
            return restoring.recover(top, self._journal, kernel)

    @staticmethod
    def is_pending(workspace: Path, journals: Path) -> bool:
        """Return, by a quick check, whether there may be a restore to finish."""
        return Journal(journals, workspace).exists

    def close(self) -> None:
        """Drop the last known state, and stop watching. Snapshots are kept. Idempotent."""
        with self._lock:
            self._unwatch(_FOR_GOOD)
            self._know(None)

    def _search(self, top: int, wanted: Folder) -> tuple[Walk, Folder]:
        walk = Walk(self.limits, digest_of, searching=True)
        now = walk.whole(top, self._known, wanted)
        if walk.is_cut_off:
            walk.tighten(top)
            raise SnapshotError(
                f"there are more than {walk.max_files:,} files and folders in {self._workspace}: remove files, then try again"
            )
        return walk, now

    def _know(self, root: Folder | None) -> None:
        """Remember the last known state and retain its files, so that unchanged content stays available."""
        if root is self._known:
            return
        if root is not None:
            self._store.retain(root)
        if self._known is not None:
            self._store.release(self._known)
        self._known = root

    def _check_top(self, verb: str, top: os.stat_result) -> None:
        """Check that the workspace is the same directory: code that can write to its parent can replace it."""
        if self._top is not None and not os.path.samestat(self._top, top):
            raise SnapshotError(f"cannot {verb} {self._workspace}: it is no longer the same directory")

    @contextmanager
    def _opened(self, verb: str) -> Iterator[int]:
        """Open the workspace for the duration of the context."""
        try:
            with held(os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as top:
                self._check_top(verb, os.fstat(top))
                yield top
        except OSError as error:
            raise SnapshotError(
                f"cannot {verb} {self._workspace}: {_meaning(error)}", path=self._workspace, errno=error.errno
            ) from error


def _meaning(error: OSError) -> str:
    words = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        words += ": free some space, then try again. Nothing was changed"
    elif error.errno in (errno.EACCES, errno.EPERM):
        words += ": look at the permissions and owners of this folder and of those in it. Nothing was changed"
    return words[:1].lower() + words[1:]


class Reverted(NamedTuple):
    """The result of an undo or a redo of files.

    Attributes:
        actions: The actions, by path.
        later: Paths left unchanged because others changed them later.
        left: Why something could not be restored; empty if everything was.
        back: The affected parts of the workspace, before and after.
        entry: The trash entry of replaced and removed files.
    """

    actions: list[FileAction]
    later: list[str]
    left: str
    back: Interval
    entry: Entry

    @classmethod
    def of(cls, made: UndoPlan, entry: Entry) -> Reverted:
        """Return the result of a plan that was carried out."""
        return cls(_actions(made.plan, entry), made.later, made.impossible, made.back, entry)


def _actions(plan: Plan, entry: Entry) -> list[FileAction]:
    kept, actions = {*entry.taken}, dict[str, FileAction]()
    created = [*plan.written, *(step.path for step in plan.steps if step.do == "make")]
    for path, old in plan.before.items():
        actions[path] = FileAction(path, "removed", _size(old), path in kept)
    for path in created:
        replaced = actions.get(path)
        if replaced is None:
            actions[path] = FileAction(path, "created")
        else:
            actions[path] = replace(replaced, action="reverted")
    for step in plan.steps:
        if step.do == "mode":
            actions.setdefault(step.path, FileAction(step.path, "reverted"))
    return [actions[path] for path in sorted(actions)][:MAX_FILE_CHANGES]


def _not_in_trash(rescued: restoring.Rescued) -> str:
    """Say where the earlier content of files is that could not be moved to the trash; empty if all could."""
    if not rescued.files:
        return ""
    path, *others = rescued.files
    folders = ", ".join(dict.fromkeys(where.partition("/")[0] for where in rescued.files.values()))
    more = f" and {len(others)} more" if others else ""
    return f"{path[:200]!r}{more} could not be moved to the trash: the earlier content is in {folders} in the workspace"


def _meanwhile(entries: Sequence[Entry], rescued: restoring.Rescued) -> str:
    """Describe, for the end of a message, what could not be restored; empty if everything was."""
    taken = dict.fromkeys(path for entry in entries for path in entry.taken)
    held = [f"the previous content of {path[:200]!r} is in the trash" for path in taken]
    held += [f"the previous content of {path[:200]!r} is in {where!r}" for path, where in rescued.files.items()]
    if not held:
        return ""
    more = f"; and {len(held) - 3} more" if len(held) > 3 else ""
    return f". Another program wrote to files in the meantime; its changes stay: {'; '.join(held[:3])}{more}"


def _done(plan: Plan, entry: Entry) -> Changes:
    kinds = (plan.written, plan.removed, plan.kept)
    written, removed, kept = (tuple(kind[:MAX_FILE_CHANGES]) for kind in kinds)
    more = sum(max(0, len(kind) - MAX_FILE_CHANGES) for kind in kinds)
    return Changes(written, removed, kept, more, entry.id if entry.taken else "")


def _changes(before: Folder, after: Folder) -> FileChanges:
    new: list[FileChange] = []
    changed: list[FileChange] = []
    deleted: list[FileChange] = []
    more = 0
    for path, old, now in differences(before, after):
        kind = new if old is None else deleted if now is None else changed
        if len(kind) < MAX_FILE_CHANGES:
            kind.append(FileChange(path, _size(old), _size(now)))
        else:
            more += 1
    return FileChanges(tuple(new), tuple(changed), tuple(deleted), more)


def _size(entry: TreeEntry | None) -> int | None:
    return facts(entry).size if isinstance(entry, File) else None
