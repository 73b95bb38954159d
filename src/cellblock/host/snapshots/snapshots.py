"""`Snapshots`: takes, compares and restores the content of one workspace."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import overload

from cellblock.errors import SnapshotError
from cellblock.host.snapshots import restore as restoring
from cellblock.host.snapshots.content import digest_of
from cellblock.host.snapshots.file import File, facts
from cellblock.host.snapshots.ignored import Ignored
from cellblock.host.snapshots.journal import Journal
from cellblock.host.snapshots.others import add_what_others_saved
from cellblock.host.snapshots.plan import Plan
from cellblock.host.snapshots.store import Store
from cellblock.host.snapshots.times import (
    CellChanges,
    Origins,
    Spans,
    first_changed,
    first_lasting_changed,
    first_unkept_changed,
)
from cellblock.host.snapshots.tree import Entry, Folder, Snapshot, SnapshotLimits, differences, lasting
from cellblock.host.snapshots.walk import StoppedError, Walk
from cellblock.host.snapshots.watch import LostError, UnwatchableError, Watch
from cellblock.model.checkpoints import MAX_FILE_CHANGES, Changes, FileChange, FileChanges

_LOG = logging.getLogger("cellblock.snapshots")
_TRIES = 5
"""How often a restore is retried because the workspace is being changed."""

_MORE = 10
"""How many times as many files are only looked at, including those that snapshots leave out because of their names."""

_LOOKS_UNWATCHED, _FOR_GOOD = 16, sys.maxsize
"""How many times to look without watches after they were lost: setting up all watches takes longer than a look."""


class Snapshots:
    """The snapshots of one workspace. Its methods block, and can be called from any thread.

    A snapshot that was taken in one workspace can be restored in another, if both share a store.

    Attributes:
        limits: The limits of a snapshot.
    """

    def __init__(
        self,
        workspace: Path,
        store: Store,
        journals: Path,
        limits: SnapshotLimits | None = None,
        origins: Origins | None = None,
    ) -> None:
        """Open the workspace once to identify it; its content is not read yet.

        Args:
            workspace: The workspace, absolute and without links. Code in a session may change its content at any time.
            store: Keeps the content of files.
            journals: A directory, the same for all programs of this user, for the journal of a restore in progress. No session
                can write to it.
            limits: The limits of a snapshot.
            origins: What is known of files that were restored before.

        Raises:
            SnapshotError: The workspace cannot be opened.
        """
        self._workspace = str(workspace)
        self._store = store
        self._journal = Journal(journals, workspace)
        self.limits = limits or SnapshotLimits()
        self._lock = threading.Lock()
        self._known: Folder | None = None
        self._generation = store.generation
        """That of the store when the known state was kept."""
        self._watch: Watch | None = None
        self._watched_with: SnapshotLimits | None = None
        self._inherited = False
        """Whether the last look was by another process."""
        self._origins = origins or Origins()
        self._unwatched = 0
        """How many more looks are done without watches."""
        self._top: os.stat_result | None = None
        with self._opened("use") as top:
            self._top = os.fstat(top)

    def begin_with(self, snapshot: Snapshot) -> None:
        """Take a snapshot's content for the last known state, unless the snapshot was dropped."""
        with self._lock, contextlib.suppress(SnapshotError):
            self._store.check(snapshot)
            self._know(snapshot.root)
            self._inherited = True

    def touched(self) -> bool:
        """Return whether something is known to have changed since the last `take` with `hurry`.

        It does not block. True if the workspace is not watched; False if it is being read at the moment.
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
        """Take a snapshot. Files that are unchanged since the last one are not read.

        Args:
            limits: Other limits, for this snapshot only.
            stopped: Called now and then, and at the end: whether to give up.
            hurry: Called before each file: whether to read no more contents, but only metadata; see `Walk`. For callers that
                take snapshots often: the workspace is watched from now on until `close`, so that only changes are examined.

        Returns:
            The snapshot, kept until `drop` is called; None if it was given up.

        Raises:
            SnapshotError: It cannot be kept; no part of it is.
        """
        added: list[bytes] = []

        def add(source: int, limit: int) -> tuple[bytes, int]:
            found = self._store.add(source, limit, self._workspace)
            added.append(found[0])
            return found

        self._store.renew()
        with self._lock, self._opened("keep the files of") as top:
            if (generation := self._store.generation) != self._generation:
                self._known, self._generation = None, generation  # what it consists of is lost
            # The first look has much to read. Its findings help the next one, even if they are not from a single moment.
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
                    raise SnapshotError(f"somebody has removed {self._store.directory}: the next snapshot makes it again")
                self._store.keep(snapshot)
            except StoppedError:
                return None
            finally:
                for digest in added:
                    self._store.release_file(digest)
        return snapshot

    def _look(self, top: int, limits: SnapshotLimits, walk: Callable[[Watch | None], Walk]) -> Folder:
        """Examine what may have changed in the workspace, or everything if that is unknown."""
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
            _LOG.debug("all files of %s are looked at: %s", self._workspace, error)
            self._unwatch(_FOR_GOOD if isinstance(error, UnwatchableError) else _LOOKS_UNWATCHED)
        else:
            if root.totals.cut:
                self._unwatch(_LOOKS_UNWATCHED)  # what is left out depends on the order in which everything is found
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

    def restore(
        self,
        snapshot: Snapshot,
        then: Callable[[], object] = lambda: None,
        *,
        within: Spans | None = None,
        between: Sequence[Snapshot] = (),
        own: bool = True,
        aside: restoring.Aside | None = None,
    ) -> Changes:
        """Restore a workspace from a snapshot: completely, or not at all. Files that are the same are not touched.

        Args:
            snapshot: A snapshot that was not dropped.
            then: Called when everything is in its place. If it fails, the restore is rolled back.
            within: Replace and remove only what was last changed in one of these spans of time; see `CellChanges`. Missing
                files are restored in any case.
            between: Later snapshots, oldest first: what others have saved before them, outside of the spans, is restored
                from these.
            own: Whether the snapshot was taken here: its files' times say when they were changed here.
            aside: Whether to keep what is removed or replaced. None: it is deleted.

        Returns:
            The changes made.

        Raises:
            SnapshotError: It failed, and nothing was changed unless the message says so.
        """
        self._store.check(snapshot)
        root, along = snapshot.root, list[str]()
        if within is not None:
            later = [one.root for one in between if self._store.has(one)]
            root, along = add_what_others_saved(root, later, within, self._origins)
        roots = [snapshot.root] if root is snapshot.root else [snapshot.root, root]
        with self._lock, self._opened("restore the files of") as top, self._journal.locked():
            restoring.recover(top, self._journal)
            rescued = restoring.Rescued(top)
            try:
                for _ in range(_TRIES):
                    plan = self._restore_once(top, roots, then, within, rescued, own=own, aside=aside)
                    if plan is not None:
                        rescued.discard()
                        plan.kept += along
                        return _done(plan)
            except BaseException:
                if rescued.files:
                    _LOG.warning("the files of %s were not restored%s", self._workspace, rescued)
                raise
        raise SnapshotError(
            f"the files of {self._workspace} cannot be restored, because something keeps changing them: stop what writes "
            f"there, then try again. {'Everything was put back' if rescued.files else 'Nothing was changed'}{rescued}"
        )

    def _restore_once(
        self,
        top: int,
        roots: Sequence[Folder],
        then: Callable[[], object],
        within: Spans | None,
        rescued: restoring.Rescued,
        *,
        own: bool,
        aside: restoring.Aside | None,
    ) -> Plan | None:
        """Return the finished plan for the last of some contents (`CellChanges`); None if files were changed meanwhile."""
        since = time.time_ns()
        walk, now = self._search(top, roots[-1])
        try:
            plan = Plan(now, roots[-1], None if within is None else CellChanges(top, within, roots, self._origins))
            found, complete = dict[bytes, int](), False

            def go_on() -> None:
                nonlocal found, complete
                if within is not None and own:
                    found, complete = self._origins.found(top, plan.again)  # before code of the session runs again
                then()

            if plan.steps:
                taken = None if aside is None else restoring.Taken(top, aside, since)
                restoring.restore(top, plan, self._store, self._journal, go_on, rescued, taken)
                if aside is not None and taken is not None:
                    aside.files |= taken.files
            else:
                go_on()
            self._origins.add(found, complete=complete)
        except restoring.UnsettledError:
            walk.tighten(top)
            return None
        except BaseException:  # of any kind: folders get their modes back
            walk.tighten(top)
            raise
        return plan

    def diff(self, before: Snapshot, after: Snapshot | None = None) -> FileChanges:
        """Return the differences between two snapshots.

        Args:
            before: The earlier one.
            after: The later one; None for the workspace as it is now.

        Raises:
            SnapshotError: One of them was dropped, or the workspace cannot be read.
        """
        self._store.check(before)
        if after is not None:
            self._store.check(after)
            return _changes(before.root, after.root)
        with self._lock, self._opened("compare the files of") as top:
            walk, now = self._search(top, before.root)
            walk.tighten(top)
        return _changes(before.root, now)

    def first_changed(self, spans: Spans) -> str | None:
        """Return a path in the workspace that was last changed within some spans of time, or None.

        Raises:
            SnapshotError: The workspace cannot be read.
        """
        with self._opened("look at the files of") as top:
            paths = (path for path in self.limits.ignore if path.startswith("/"))
            return first_changed(top, spans, Ignored(paths), self.limits.max_files * _MORE)

    def first_unkept_changed(self, kept: Sequence[tuple[Snapshot, Spans]]) -> str | None:
        """Return a file that cannot be restored, because its content was not kept and it has changed since; or None.

        Args:
            kept: See `times.first_unkept_changed`.

        Raises:
            SnapshotError: The workspace cannot be read.
        """
        with self._opened("look at the files of") as top:
            return first_unkept_changed(top, [(one.root, spans) for one, spans in kept])

    def first_lasting_changed(self, kept: Sequence[tuple[Snapshot, Spans]], *, quickly: bool) -> tuple[str, str] | None:
        """Return what has changed of that which a snapshot leaves out; see `times.first_lasting_changed`.

        Raises:
            SnapshotError: The workspace cannot be read.
        """
        if all(next(lasting(one.root), None) is None for one, _ in kept):
            return None
        with self._opened("look at the files of") as top:
            return first_lasting_changed(top, [(one.root, spans) for one, spans in kept], quickly=quickly)

    def drop(self, snapshot: Snapshot) -> None:
        """Drop a snapshot. Content that no other one needs is removed. It can be repeated."""
        self._store.drop(snapshot)

    def recover(self) -> bool:
        """Finish a restore whose process was killed; call this before a session starts.

        Returns:
            Whether there was one.

        Raises:
            SnapshotError: It cannot be finished now.
        """
        with self._lock, self._opened("finish restoring the files of") as top, self._journal.locked():
            return restoring.recover(top, self._journal)

    @staticmethod
    def is_pending(workspace: Path, journals: Path) -> bool:
        """Whether there may be a restore to finish: a quick check, before anything is created."""
        return Journal(journals, workspace).exists

    def close(self) -> None:
        """Drop the last known state, and stop watching. Snapshots stay. It can be repeated."""
        with self._lock:
            self._unwatch(_FOR_GOOD)
            self._know(None)

    def _search(self, top: int, wanted: Folder) -> tuple[Walk, Folder]:
        walk = Walk(self.limits, digest_of, searching=True)
        now = walk.whole(top, self._known, wanted)
        if walk.is_cut_off:
            walk.tighten(top)
            raise SnapshotError(
                f"there are more than {walk.max_files:,} files and folders in {self._workspace}: remove some, then try again"
            )
        return walk, now

    def _know(self, root: Folder | None) -> None:
        """Remember the last known state, and retain its files, so that unchanged content stays available."""
        if root is self._known:
            return
        if root is not None:
            self._store.retain(root)
        if self._known is not None:
            self._store.release(self._known)
        self._known = root

    def _check_top(self, verb: str, top: os.stat_result) -> None:
        """Check that the workspace is the same directory as before: code that can write to its parent can replace it."""
        if self._top is not None and not os.path.samestat(self._top, top):
            raise SnapshotError(f"cannot {verb} {self._workspace}: it is no longer the same directory")

    @contextmanager
    def _opened(self, verb: str) -> Iterator[int]:
        """Open the workspace for the duration of the context."""
        try:
            top = os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                self._check_top(verb, os.fstat(top))
                yield top
            finally:
                os.close(top)
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


def _done(plan: Plan) -> Changes:
    kinds = (plan.written, plan.removed, plan.kept)
    written, removed, kept = (tuple(kind[:MAX_FILE_CHANGES]) for kind in kinds)
    return Changes(written, removed, kept, sum(max(0, len(kind) - MAX_FILE_CHANGES) for kind in kinds))


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


def _size(entry: Entry | None) -> int | None:
    return facts(entry).size if isinstance(entry, File) else None
