"""Snapshots, compares and restores the files of one session's checkpoints, in threads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from cellblock.common import config
from cellblock.common.open_flags import LIST
from cellblock.common.tasks import despite_cancellation
from cellblock.common.threads import run_aside
from cellblock.errors import SnapshotError
from cellblock.host.closing import in_thread
from cellblock.host.files.staging import remove_unclaimed
from cellblock.host.files.walls import Walls
from cellblock.host.kernels.pairs import files_time
from cellblock.host.snapshots import Snapshot, SnapshotLimits, Snapshots, Store, pack
from cellblock.host.snapshots.beneath import open_parent
from cellblock.host.snapshots.entries import Folder
from cellblock.host.snapshots.journal import HeldError
from cellblock.host.snapshots.snapshots import Reverted
from cellblock.host.snapshots.times import Spans, is_within
from cellblock.host.snapshots.trash import Entry, Reason, Trash, Unpacked, purge_if_due
from cellblock.host.snapshots.tree import MIB
from cellblock.host.snapshots.undo import Interval, why_left_out, why_unkept
from cellblock.host.snapshots.written import Description
from cellblock.model.checkpoints import Changes, FileChanges, TrashEntry
from cellblock.walls.sandbox.paths import is_inside

_log = logging.getLogger("cellblock.sessions")
T = TypeVar("T")
Then: TypeAlias = Callable[[], Coroutine[Any, Any, object]]
Bring: TypeAlias = Callable[[Then], Awaitable[T]]
"""Restores files, and runs its argument before that is final."""

# Automatic snapshots after each cell must be cheap.
_SMALL = SnapshotLimits(max_files=20_000, max_total_bytes=256 * MIB, max_file_bytes=64 * MIB)
_PATIENCE = 30.0
"""Seconds that a restore waits for another one in the same directory."""
_LOOK_AGAIN = 0.01
_MAX_SHARED = 2_000
"""Maximum number of files kept in a directory that is the program's, not the session's: it may hold anything."""


class _NotLoadedError(SnapshotError):
    """The variables of a saved session were not loaded, so that its files were removed again."""


class CheckpointFiles:
    """Snapshots and restores the session's directory, for `Checkpoints`.

    Methods raise `SnapshotError` if the files cannot be read.

    Attributes:
        own: Whether the program gave the session its own directory.
        too_many: Why automatic snapshots stopped: a directory that is not the session's own has too many files.
        label: The session's name, for its trash.
    """

    def __init__(
        self,
        workspace: str,
        store: Callable[[], Store],
        walls: Walls | None,
        *,
        own: bool,
        label: str = "",
        repository: bool = False,
        own_sandbox: bool = False,
    ) -> None:
        """Set the paths. Nothing is read yet.

        Args:
            workspace: The directory.
            store: Returns the host's snapshot store.
            walls: Paths that the session cannot read or write, which snapshots exclude. None without a sandbox.
            own: Whether the program gave the session this directory.
            label: The session's name; may be empty.
            repository: Whether snapshots contain ``.git``, so that commits can be undone.
            own_sandbox: Whether the session is about to start its sandbox. It can change no path in `walls` that exists now.
        """
        self.label = label
        self._repository = repository
        self.own = own
        self.too_many = ""
        self._workspace = Path(os.path.realpath(workspace))
        self._make_store = store
        self._walls = walls
        self._starts = files_time() if own_sandbox else 0
        self._made: Snapshots | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._known: Snapshot | None = None

    def begin_with(self, known: Snapshot) -> None:
        """Start with an earlier host's last snapshot, so that unchanged files are not read again."""
        self._known = known

    def describe(self, snapshot: Snapshot | None) -> Description | None:
        """Describe a snapshot for a later host; None without a snapshot or a later host."""
        return None if snapshot is None else self._make_store().describe(snapshot)

    async def take(self) -> Snapshot:
        """Take a snapshot.

        Raises:
            SnapshotError: The files cannot be saved.
        """
        store = self._make_store()
        return await _owned(lambda: self._snapshots(store).take(), store.drop)

    async def take_small(self, stopped: Callable[[], bool], hurry: Callable[[], bool] = lambda: False) -> Snapshot | None:
        """Take a snapshot, unless files change meanwhile or are too many.

        Args:
            stopped: Returns whether files are being changed. Called in another thread.
            hurry: Returns whether there is no time to read files. Called in another thread.

        Returns:
            The snapshot; None if files changed.

        Raises:
            SnapshotError: The files cannot be saved, or are too many. The message says which.
        """
        store = self._make_store()
        return await _owned(
            lambda: self._take_small(store, stopped, hurry), lambda kept: None if kept is None else store.drop(kept)
        )

    def _take_small(self, store: Store, stopped: Callable[[], bool], hurry: Callable[[], bool]) -> Snapshot | None:
        if self.too_many:
            raise SnapshotError(self.too_many)
        snapshots = self._snapshots(store)
        small = replace(_SMALL, ignore=snapshots.limits.ignore, makeable=snapshots.limits.makeable)
        if not self.own:
            small = replace(small, max_files=min(small.max_files, _MAX_SHARED))
        snapshot = snapshots.take(small, stopped, hurry)
        if snapshot is not None and not snapshot.whole:
            store.drop(snapshot)
            why = (
                f"there are more than {small.max_files:,} files and folders, or folders are nested too deep, in "
                f"{self._workspace}: session.checkpoint(files='copy') allows more"
            )
            if not self.own:
                self.too_many = f"{why}, and so does a session with a working_dir"
            raise SnapshotError(self.too_many or why)
        return snapshot

    def touched(self) -> bool:
        """Return whether files may have changed since the last automatic snapshot."""
        if self._made is None or self.too_many:
            return self._known is not None
        return self._made.touched()

    async def restore(self, snapshot: Snapshot, then: Then, why: Reason) -> Changes:
        """Restore the files, after any other session's restore of the same directory.

        Args:
            snapshot: The files.
            then: Runs after the restore, to start the process that opens the files. If it fails, the restore is rolled back.
            why: The reason shown in the trash.

        Raises:
            SnapshotError: The files are unchanged, unless the message says otherwise.
            CellblockError: Raised by `then`.
        """
        return await self._change(lambda snapshots, finish: snapshots.restore(snapshot, finish, why), then)

    async def undo(self, intervals: Sequence[Interval], then: Then, why: Reason, *, partial: bool) -> Reverted:
        """Undo file changes of cells (`Snapshots.undo`). The other arguments are as for `restore`."""
        return await self._change(lambda snapshots, finish: snapshots.undo(intervals, finish, why, partial=partial), then)

    async def redo(self, back: Interval, entry: Entry, then: Then, why: Reason) -> Reverted:
        """Revert an undo (`Snapshots.redo`). The other arguments are as for `restore`."""
        return await self._change(lambda snapshots, finish: snapshots.redo(back, entry, finish, why), then)

    async def put_back(self, entry: str, path: str) -> Changes:
        """Restore something from the trash to its original path (`Snapshots.put_back`).

        Args:
            entry: The id of the entry; empty for the newest one that contains the path.
            path: The path; empty for everything in the entry.

        Raises:
            FilesError, SnapshotError: The trash does not contain it, or it cannot be restored. Nothing was changed.
        """
        found = await _owned(lambda: self.trash.find(entry, path), _forget)
        return await self._change(lambda snapshots, _: snapshots.put_back(found, path, Reason("trash")), _nothing)

    async def unpack(self, folder: int, load: Then, until: int) -> None:
        """Move the unpacked files of a saved session to the workspace, then load its variables: both or neither.

        A cancelled caller cancels `load`.

        Args:
            folder: The files: an open folder on the file system of the workspace.
            load: Loads the variables into a second kernel, which replaces the session's.
            until: The number of the session's kernel. If this process is killed before the session has another one, the next
                session of the workspace rolls the files back.

        Raises:
            SnapshotError: The files cannot be moved. Nothing was changed, unless the message says otherwise.
            CellblockError: Raised by `load`.
        """
        loading: list[asyncio.Task[object]] = []

        async def then() -> None:
            loading.append(asyncio.ensure_future(load()))
            await asyncio.wait(loading)
            if loading[0].cancelled() or loading[0].exception() is not None:
                raise _NotLoadedError("the variables were not loaded")

        def work(snapshots: Snapshots, finish: Callable[[], None]) -> None:
            snapshots.unpack(Unpacked(folder), finish, Reason("load"), until)

        # In a thread of its own: `load` needs other threads, and all of them could be waiting for it.
        with ThreadPoolExecutor(1) as thread:
            changing = asyncio.ensure_future(self._change(work, then, thread))
            try:
                await asyncio.wait([changing])
            except asyncio.CancelledError:
                changing.cancel()
                while not changing.done():
                    for one in loading:
                        one.cancel()
                    await asyncio.wait([changing], timeout=_LOOK_AGAIN)
                raise
            try:
                changing.result()
            except _NotLoadedError:
                loading[0].result()  # raises the reason, which is no error of files although it may be an OSError

    async def trashed(self) -> list[TrashEntry]:
        """Return the trash entries, newest first."""
        return await _owned(lambda: [entry.listed() for entry in self.trash.entries()], _forget)

    async def take_trash(self, other: CheckpointFiles) -> None:
        """Take over the trash of another session that ends."""
        await _owned(lambda: self.trash.take_over(other.trash), _forget)

    async def take_left_out(self, other: CheckpointFiles, paths: Sequence[str]) -> str:
        """Move what snapshots exclude from the directory of another session, which ends, to the trash.

        Returns:
            The id of the trash entry.

        Raises:
            SnapshotError: Something is still in that directory.
        """

        def take() -> str:
            entry = self.trash.new(Reason("adopt"))
            top = os.open(other._workspace, LIST)
            try:
                for path in paths:
                    with contextlib.suppress(FileNotFoundError), open_parent(top, path) as (parent, name):
                        if not entry.take(parent, name, path):
                            raise SnapshotError(
                                f"the branch was adopted, but {path[:200]!r} could not be moved to the trash: move it out of "
                                f"{other._workspace}, then close the branch",
                                path=path,
                            )
            finally:
                os.close(top)
            return entry.id if entry.taken else ""

        return await _owned(take, _forget)

    def keeping(self, operation: str) -> Entry:
        """Return a new trash entry for the files that an operation is about to replace."""
        purge_if_due()
        return self.trash.new(Reason(operation))

    @property
    def trash(self) -> Trash:
        """The session's trash."""
        return Trash(str(self._workspace), self.label)

    async def _change(
        self, work: Callable[[Snapshots, Callable[[], None]], T], then: Then, thread: Executor | None = None
    ) -> T:
        store, loop = self._make_store(), asyncio.get_running_loop()

        def finish() -> None:
            asyncio.run_coroutine_threadsafe(then(), loop).result()

        deadline = loop.time() + _PATIENCE
        try:
            while True:
                try:
                    return await _owned(lambda: work(self._snapshots(store), finish), _forget, thread)
                except HeldError:  # waiting in the thread could block: the other restore's `then` may need one
                    if loop.time() > deadline:
                        raise
                await asyncio.sleep(_LOOK_AGAIN)
        finally:
            purge_if_due()

    @property
    def writable(self) -> bool:
        """Whether files can be created and removed in the directory."""
        return os.access(self._workspace, os.W_OK | os.X_OK)

    async def changed_within(self, spans: Spans) -> str:
        """Return, for a message, the files changed within some time intervals; empty if none."""
        path = await self._look(lambda snapshots: snapshots.first_changed(spans))
        if path is None:
            return ""
        return "files have changed" if path == "." else f"{path[:200]!r} has changed"

    async def why_not_undoable(self, intervals: Sequence[Interval]) -> str:
        """Return why some change of the cells cannot be undone; empty if all can.

        Raises:
            SnapshotError: The files cannot be read, or an external change blocks the undo.
        """
        return await self._look(lambda snapshots: snapshots.why_not_undoable(intervals))

    async def now(self, wanted: Snapshot) -> Folder:
        """Return the current files, as far as a comparison with a snapshot needs them."""
        return await self._look(lambda snapshots: snapshots.now(wanted))

    async def looks_undoable(self, before: Snapshot, spans: Spans) -> str:
        """Return why the last cell cannot be undone, by a quick check of the files before it; empty if it can."""
        if not before.unkept and not before.root.totals.left_out:
            return ""

        def look(snapshots: Snapshots) -> str:
            if before.unkept and (path := snapshots.first_unkept_changed(before, spans)) is not None:
                return why_unkept(path)
            found = snapshots.first_left_out_changed(before, spans)
            return "" if found is None else why_left_out(*found)

        return await self._look(look)

    async def diff(self, before: Snapshot, after: Snapshot | None = None) -> FileChanges:
        """Return the changes from a snapshot to another one or to now."""
        return await self._look(lambda snapshots: snapshots.diff(before, after))

    async def with_store(self, work: Callable[[Store], T]) -> T:
        """Run something with the host's snapshot store in a thread."""
        store = self._make_store()
        return await _owned(lambda: work(store), _forget)

    async def recover(self, kernel: int | None) -> None:
        """Finish a killed program's restore, or roll it back, before the session starts, and remove its leftovers.

        `kernel` is the number of the session's kernel, if an earlier process left it.
        """
        run_aside(partial(remove_unclaimed, str(self._workspace)), "cellblock-removal")
        if not Snapshots.is_pending(self._workspace, _journals()):
            return
        try:
            if await self._look(lambda snapshots: snapshots.recover(kernel)):
                _log.warning("the files of %s are restored, as a program that was killed had begun to", self._workspace)
        except HeldError:
            pass  # it was not killed: another session is restoring these files now
        except SnapshotError as error:
            _log.warning("%s", error)

    def hold(self, snapshot: Snapshot) -> Snapshot:
        """Return a second reference to a snapshot, with its own lifetime."""
        again = replace(snapshot)
        self._make_store().keep(again)
        return again

    def hold_parts(self, back: Interval) -> tuple[Snapshot | None, Snapshot | None]:
        """Save the affected parts of the workspace before and after an undo; None for each if there is no room."""
        held: list[Snapshot] = []
        try:
            held.extend(self.hold(Snapshot(files)) for files in (back.before, back.after))  # one by one, until an error
        except OSError as error:
            _log.warning("after a restart, an undo in %s cannot be reversed: %s", self._workspace, error)
            for snapshot in held:
                self.drop(snapshot)
            return None, None
        return held[0], held[1]

    def pack(self, snapshot: Snapshot, left_out: list[tuple[str, str]]) -> Iterator[bytes]:
        """Return files as a tar stream, to read in a thread (`snapshots.pack`). A clone's links are included."""
        return pack(self._make_store(), snapshot, left_out, links=self._repository)

    def drop(self, snapshot: Snapshot) -> None:
        """Drop a snapshot. Its files, possibly many, are removed in a thread."""
        store = self._make_store()
        if not store.drop_shared(snapshot):  # common: a cell without file changes. Starting a thread would take longer
            run_aside(lambda: store.drop(snapshot), "cellblock-files")

    async def close(self) -> None:
        """Drop the directory's cached state, but no snapshots, and examine no more files. Idempotent."""
        with self._lock:
            self._closed = True
            made, self._made = self._made, None
        if made is not None:
            await despite_cancellation(asyncio.ensure_future(in_thread(made.close)))

    async def _look(self, work: Callable[[Snapshots], T]) -> T:
        """Run something with the snapshots in a thread."""
        return await self.with_store(lambda store: work(self._snapshots(store)))

    def _snapshots(self, store: Store) -> Snapshots:
        with self._lock:
            if self._closed:  # nothing would close another one
                raise SnapshotError(f"the session in {self._workspace} is closed")
            if self._made is None:  # not earlier: this reads the file system
                names = set() if self._walls is None else self._walls.names(str(self._workspace))
                state = os.path.realpath(config.state_directory())
                protected = {name for name in names if self._is_protected(name, state)}
                usual = (name for name in SnapshotLimits().ignore if not (self._repository and name == ".git"))
                limits = SnapshotLimits(ignore=(*usual, *protected), makeable=(*names - protected,))
                self._made = Snapshots(self._workspace, store, _journals(), limits, self.label)
                known, self._known = self._known, None
                if known is not None:
                    self._made.begin_with(known)
            return self._made

    def _is_protected(self, name: str, state: str) -> bool:
        """Return whether a path in the walls existed before the sandbox, which protects it, or is cellblock's own.

        Args:
            name: The path, with a leading slash.
            state: The state directory.
        """
        path = f"{self._workspace}{name}"
        if is_inside(path, state) or is_inside(state, path):
            return True
        try:
            return not is_within(os.lstat(path).st_ctime_ns, [(self._starts, sys.maxsize)])
        except OSError:
            return False


def make_store(*, lasting: bool) -> Store:
    """Create a store for one host's snapshots, and remove the stores of killed hosts.

    It is separate from the host's other directories, so that a session with a permissive policy cannot read another session's
    files. The next host can continue a lasting store.

    Raises:
        SnapshotError: The store cannot be created.
    """
    return Store.make(config.state_directory() / "snapshots", lasting=lasting)


def _journals() -> Path:
    return config.state_directory() / "restores"


async def _owned(work: Callable[[], T], forget: Callable[[T], Any], thread: Executor | None = None) -> T:
    """Run a function in a thread. If the caller is cancelled, wait for the function, then drop its result."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(asyncio.to_thread(work) if thread is None else loop.run_in_executor(thread, work))
    try:
        await despite_cancellation(task)
    except asyncio.CancelledError:
        if task.exception() is None:
            forget(task.result())
        raise
    return task.result()


async def _nothing() -> None:
    """Do nothing after a restore: no process opens the files."""


def _forget(_: object) -> None:
    """Drop a result that needs no owner."""
