"""Keeps, compares and restores the files of one session's checkpoints, in threads."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from cellblock.common import config
from cellblock.common.threads import run_aside
from cellblock.errors import SnapshotError
from cellblock.host.closing import in_thread
from cellblock.host.files.staging import remove_unclaimed
from cellblock.host.files.walls import Walls
from cellblock.host.kernels.stopping import despite_cancellation
from cellblock.host.snapshots import Changes, FileChanges, Snapshot, SnapshotLimits, Snapshots, Store, pack
from cellblock.host.snapshots.journal import HeldError
from cellblock.host.snapshots.snapshots import Reverted
from cellblock.host.snapshots.times import Spans
from cellblock.host.snapshots.trash import Entry, Reason, Trash, purge
from cellblock.host.snapshots.tree import MIB, Folder
from cellblock.host.snapshots.undo import Interval, why_left_out, why_unkept
from cellblock.host.snapshots.versions import version_in
from cellblock.host.snapshots.written import Description
from cellblock.model.checkpoints import FileVersion, TrashEntry

_log = logging.getLogger("cellblock.sessions")
T = TypeVar("T")
Then: TypeAlias = Callable[[], Coroutine[Any, Any, object]]

# Keeping files automatically after each cell must be cheap.
_SMALL = SnapshotLimits(max_files=20_000, max_total_bytes=256 * MIB, max_file_bytes=64 * MIB)
_PATIENCE = 30.0
"""Seconds that a restore waits for another one in the same directory."""
_LOOK_AGAIN = 0.01
_MAX_SHARED = 2_000
"""Maximum number of files kept in a directory that is the program's, not the session's: it may hold anything."""


class CheckpointFiles:
    """Keeps and restores the files of the session's directory, for `Checkpoints`.

    Attributes:
        own: Whether the program has given the session a directory of its own.
        too_many: Why files are no longer kept automatically: a directory that is not the session's own has too many.
        label: The session's name, for its trash.
    """

    def __init__(self, workspace: str, store: Callable[[], Store], walls: Walls | None, *, own: bool, label: str = "") -> None:
        """Prepare; nothing is read yet.

        Args:
            workspace: The directory.
            store: Returns the host's store of files.
            walls: Paths that the session cannot read or write. They are not part of its files. None without a sandbox.
            own: Whether the program has given the session this directory.
            label: The session's name; empty if it has none.
        """
        self.label = label
        self.own = own
        self.too_many = ""
        self._workspace = Path(os.path.realpath(workspace))
        self._make_store = store
        self._walls = walls
        self._made: Snapshots | None = None
        self._lock = threading.Lock()
        self._known: Snapshot | None = None

    def begin_with(self, known: Snapshot) -> None:
        """Start with the last snapshot of an earlier host: files that are unchanged since are not read again."""
        self._known = known

    def describe(self, snapshot: Snapshot | None) -> Description | None:
        """Return what a later host needs to find a snapshot; None if there is no snapshot, or no later host."""
        return None if snapshot is None else self._make_store().describe(snapshot)

    async def take(self) -> Snapshot:
        """Keep the files as they are.

        Raises:
            SnapshotError: They cannot be kept.
        """
        store = self._make_store()
        return await _owned(lambda: self._snapshots(store).take(), store.drop)

    async def take_small(self, stopped: Callable[[], bool], hurry: Callable[[], bool] = lambda: False) -> Snapshot | None:
        """Keep the files as they are, unless they begin to change or are too many.

        Args:
            stopped: Returns whether something changes them. Called in another thread.
            hurry: Returns whether there is no time to read files. Called in another thread.

        Returns:
            The snapshot; None if there is none.

        Raises:
            SnapshotError: They cannot be kept, or are too many; the message says which.
        """
        store = self._make_store()
        return await _owned(
            lambda: self._take_small(store, stopped, hurry), lambda kept: None if kept is None else store.drop(kept)
        )

    def _take_small(self, store: Store, stopped: Callable[[], bool], hurry: Callable[[], bool]) -> Snapshot | None:
        if self.too_many:
            raise SnapshotError(self.too_many)
        snapshots = self._snapshots(store)
        small = replace(_SMALL, ignore=snapshots.limits.ignore)
        if not self.own:
            small = replace(small, max_files=min(small.max_files, _MAX_SHARED))
        snapshot = snapshots.take(small, stopped, hurry)
        if snapshot is not None and not snapshot.whole:
            store.drop(snapshot)
            why = (
                f"there are more than {small.max_files:,} files and folders, or folders are nested too deep, in "
                f"{self._workspace}: session.checkpoint(files='copy') keeps more"
            )
            if not self.own:
                self.too_many = f"{why}, and so does a session with a working_dir"
            raise SnapshotError(self.too_many or why)
        return snapshot

    def touched(self) -> bool:
        """Return whether files have changed, or may have, since they were kept automatically."""
        if self._made is None or self.too_many:
            return self._known is not None
        return self._made.touched()

    async def restore(self, snapshot: Snapshot, then: Then, why: Reason) -> Changes:
        """Restore the files. If another session is restoring files of the same directory, wait until it has finished.

        Args:
            snapshot: The files.
            then: Runs when they are restored: starts the process that opens them. If it fails, the restore is rolled back.
            why: What the trash says of what is replaced or removed.

        Raises:
            SnapshotError: They are unchanged, unless the message says more.
            CellblockError: Raised by `then`.
        """
        return await self._change(lambda snapshots, finish: snapshots.restore(snapshot, finish, why), then)

    async def undo(self, intervals: Sequence[Interval], then: Then, why: Reason, *, partial: bool) -> Reverted:
        """Give back what cells have changed; see `Snapshots.undo`, and `restore`."""
        return await self._change(lambda snapshots, finish: snapshots.undo(intervals, finish, why, partial=partial), then)

    async def redo(self, undone: Reverted, then: Then, why: Reason) -> Reverted:
        """Take back an undo; see `Snapshots.redo`, and `restore`."""
        return await self._change(lambda snapshots, finish: snapshots.redo(undone, finish, why), then)

    async def put_back(self, entry: str, path: str) -> Changes:
        """Copy something from the trash to where it was; see `Snapshots.put_back`.

        Args:
            entry: The id of the entry; empty for the newest one that holds the path.
            path: The path; empty for everything in the entry.

        Raises:
            FilesError, SnapshotError: The trash does not hold that; it cannot be restored, and nothing was changed.
        """
        found = await _owned(lambda: self.trash.find(entry, path), _forget)
        return await self._change(lambda snapshots, _: snapshots.put_back(found, path, Reason("trash")), _nothing)

    async def trashed(self) -> list[TrashEntry]:
        """Return what the trash holds, newest first."""
        return await _owned(lambda: [entry.listed() for entry in self.trash.entries()], _forget)

    async def take_trash(self, other: CheckpointFiles) -> None:
        """Take what the trash of another session holds, which ends."""
        await _owned(lambda: self.trash.take_over(other.trash), _forget)

    def keeping(self, operation: str) -> Entry:
        """Return a new entry of the trash, for what an operation is about to replace."""
        run_aside(purge, "cellblock-trash")
        return self.trash.new(Reason(operation))

    @property
    def trash(self) -> Trash:
        """The session's trash."""
        return Trash(str(self._workspace), self.label)

    async def _change(self, work: Callable[[Snapshots, Callable[[], None]], T], then: Then) -> T:
        store, loop = self._make_store(), asyncio.get_running_loop()

        def finish() -> None:
            asyncio.run_coroutine_threadsafe(then(), loop).result()

        deadline = loop.time() + _PATIENCE
        while True:
            try:
                return await _owned(lambda: work(self._snapshots(store), finish), _forget)
            except HeldError:  # not awaited in the thread: `then` of the restore in flight may need one
                if loop.time() > deadline:
                    raise
            finally:
                run_aside(purge, "cellblock-trash")
            await asyncio.sleep(_LOOK_AGAIN)

    @property
    def writable(self) -> bool:
        """Whether files can be made and removed in the directory."""
        return os.access(self._workspace, os.W_OK | os.X_OK)

    async def changed_within(self, spans: Spans) -> str:
        """Return, for a message, which files were changed within some spans of time; empty if none were.

        Raises:
            SnapshotError: The files cannot be read.
        """
        store = self._make_store()
        path = await _owned(lambda: self._snapshots(store).first_changed(spans), _forget)
        if path is None:
            return ""
        return "files have changed" if path == "." else f"{path[:200]!r} has changed"

    async def why_not_undoable(self, intervals: Sequence[Interval]) -> str:
        """Return why something that cells have changed cannot be brought back; empty if all can.

        Raises:
            SnapshotError: The files cannot be read, or somebody else has put something in the way.
        """
        store = self._make_store()
        return await _owned(lambda: self._snapshots(store).why_not_undoable(intervals), _forget)

    async def now(self, wanted: Snapshot) -> Folder:
        """Return the present files, as far as is needed to compare them with a snapshot.

        Raises:
            SnapshotError: The files cannot be read.
        """
        store = self._make_store()
        return await _owned(lambda: self._snapshots(store).now(wanted), _forget)

    async def looks_undoable(self, before: Snapshot, spans: Spans) -> str:
        """Return why a cell that has just ended cannot be undone, as far as that shows at a quick look; empty if it can.

        Args:
            before: The files before it.
            spans: When it ran.

        Raises:
            SnapshotError: The files cannot be read.
        """
        if not before.unkept and not before.root.totals.left_out:
            return ""
        store = self._make_store()

        def look() -> str:
            snapshots = self._snapshots(store)
            if before.unkept and (path := snapshots.first_unkept_changed(before, spans)) is not None:
                return why_unkept(path)
            found = snapshots.first_left_out_changed(before, spans)
            return "" if found is None else why_left_out(*found)

        return await _owned(look, _forget)

    async def diff(self, before: Snapshot, after: Snapshot | None = None) -> FileChanges:
        """Return the changes since a snapshot, until another one or now.

        Raises:
            SnapshotError: The files cannot be read.
        """
        store = self._make_store()
        return await _owned(lambda: self._snapshots(store).diff(before, after), _forget)

    async def version(self, snapshot: Snapshot, parts: Sequence[str]) -> FileVersion | None:
        """Return what a snapshot has at a path; None if there was nothing.

        Raises:
            SnapshotError: The snapshot was dropped.
        """
        store = self._make_store()
        return await _owned(lambda: version_in(store, snapshot, parts), _forget)

    async def recover(self) -> None:
        """Finish a restore here whose program was killed, before the session starts; remove what else it has left."""
        run_aside(partial(remove_unclaimed, str(self._workspace)), "cellblock-removal")
        if not Snapshots.is_pending(self._workspace, _journals()):
            return
        try:
            store = self._make_store()
            if await _owned(lambda: self._snapshots(store).recover(), _forget):
                _log.warning("the files of %s are restored, as a program that was killed had begun to", self._workspace)
        except HeldError:
            pass  # it was not killed: another session is restoring these files now
        except SnapshotError as error:
            _log.warning("%s", error)

    def hold(self, snapshot: Snapshot) -> Snapshot:
        """Return the same files as another snapshot with its own lifetime."""
        again = replace(snapshot)
        self._make_store().keep(again)
        return again

    def pack(self, snapshot: Snapshot, left_out: list[tuple[str, str]]) -> Iterator[bytes]:
        """Return files as a tar stream, to be read in a thread; see `snapshots.pack`."""
        return pack(self._make_store(), snapshot, left_out)

    def drop(self, snapshot: Snapshot) -> None:
        """Drop a snapshot. Its files are removed in a thread: they may be many."""
        store = self._make_store()
        if not store.drop_shared(snapshot):  # as after each cell that changes no file: to start a thread would take longer
            run_aside(lambda: store.drop(snapshot), "cellblock-files")

    async def close(self) -> None:
        """Drop the cached state of the directory. Snapshots stay. It can be repeated."""
        with self._lock:
            made, self._made = self._made, None
        if made is not None:
            await despite_cancellation(asyncio.ensure_future(in_thread(made.close)))

    def _snapshots(self, store: Store) -> Snapshots:
        with self._lock:
            if self._made is None:  # not earlier: this reads the file system
                names = () if self._walls is None else self._walls.names(str(self._workspace))
                limits = SnapshotLimits(ignore=(*SnapshotLimits().ignore, *names))
                self._made = Snapshots(self._workspace, store, _journals(), limits, self.label)
                known, self._known = self._known, None
                if known is not None:
                    self._made.begin_with(known)
            return self._made


def make_store(*, lasting: bool) -> Store:
    """Create a store for the files of one host's checkpoints, and remove those of killed hosts.

    It is apart from the host's other directories: a session with a permissive policy must not read another one's files.

    Args:
        lasting: Whether the next host may take it over.

    Raises:
        SnapshotError: It cannot be created.
    """
    return Store.make(config.state_directory() / "snapshots", lasting=lasting)


def _journals() -> Path:
    return config.state_directory() / "restores"


async def _owned(work: Callable[[], T], forget: Callable[[T], Any]) -> T:
    """Run a function in a thread. If the caller is cancelled, wait for it nevertheless, then drop its result."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await despite_cancellation(task)
    except asyncio.CancelledError:
        if task.exception() is None:
            forget(task.result())
        raise
    return task.result()


async def _nothing() -> None:
    """Do nothing when files are restored: no process opens them."""


def _forget(_: object) -> None:
    """Drop a result that needs no owner."""
