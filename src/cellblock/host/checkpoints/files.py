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
from typing import Any, TypeVar

from cellblock.common import config
from cellblock.common.threads import run_aside
from cellblock.errors import SnapshotError
from cellblock.host.closing import in_thread
from cellblock.host.files.staging import remove_unclaimed
from cellblock.host.files.walls import Walls
from cellblock.host.kernels.stopping import despite_cancellation
from cellblock.host.snapshots import Aside, Changes, FileChanges, Snapshot, SnapshotLimits, Snapshots, Store, pack
from cellblock.host.snapshots.journal import HeldError
from cellblock.host.snapshots.others import has_others
from cellblock.host.snapshots.times import Origins, Spans
from cellblock.host.snapshots.tree import MIB
from cellblock.host.snapshots.versions import version_in
from cellblock.host.snapshots.written import Description
from cellblock.model.checkpoints import FileVersion

_log = logging.getLogger("cellblock.sessions")
T = TypeVar("T")

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
        origins: What is known of files that were restored.
    """

    def __init__(self, workspace: str, store: Callable[[], Store], walls: Walls | None, *, own: bool) -> None:
        """Prepare; nothing is read yet.

        Args:
            workspace: The directory.
            store: Returns the host's store of files.
            walls: Paths that the session cannot read or write. They are not part of its files. None without a sandbox.
            own: Whether the program has given the session this directory.
        """
        self.own = own
        self.too_many = ""
        self.origins = Origins()
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

    async def restore(
        self,
        snapshot: Snapshot,
        then: Callable[[], Coroutine[Any, Any, object]],
        *,
        within: Spans | None = None,
        between: Sequence[Snapshot] = (),
        own: bool = True,
        aside: Aside | None = None,
    ) -> Changes:
        """Restore the files. If another session is restoring files of the same directory, wait until it has finished.

        Args:
            snapshot: The files.
            then: Runs when they are restored: starts the process that opens them. If it fails, the restore is rolled back.
            within: Replace and remove only files that were last changed in these spans of time; see `Snapshots.restore`.
            between: See `Snapshots.restore`.
            own: See `Snapshots.restore`.
            aside: See `Snapshots.restore`.

        Raises:
            SnapshotError: They are unchanged, unless the message says more.
            CellblockError: Raised by `then`.
        """
        store, loop = self._make_store(), asyncio.get_running_loop()

        def finish() -> None:
            asyncio.run_coroutine_threadsafe(then(), loop).result()

        deadline = loop.time() + _PATIENCE
        while True:
            try:
                return await _owned(
                    lambda: self._snapshots(store).restore(
                        snapshot, finish, within=within, between=between, own=own, aside=aside
                    ),
                    _forget,
                )
            except HeldError:  # not awaited in the thread: `then` of the restore in flight may need one
                if loop.time() > deadline:
                    raise
            await asyncio.sleep(_LOOK_AGAIN)

    @property
    def writable(self) -> bool:
        """Whether files can be made and removed in the directory."""
        return os.access(self._workspace, os.W_OK | os.X_OK)

    def has_others(self, before: Snapshot, after: Snapshot, spans: Spans) -> bool:
        """Return whether others may have saved something between two snapshots; see `others.has_others`."""
        return has_others(before.root, after.root, spans, self.origins)

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

    async def unkept_changed(self, kept: Sequence[tuple[Snapshot, Spans]]) -> str:
        """Return, for a message, a changed file whose content was not kept; empty if there is none.

        Args:
            kept: See `times.first_unkept_changed`.

        Raises:
            SnapshotError: The files cannot be read.
        """
        if not any(snapshot.unkept for snapshot, _ in kept):
            return ""
        store = self._make_store()
        path = await _owned(lambda: self._snapshots(store).first_unkept_changed(kept), _forget)
        if path is None:
            return ""
        return (
            f"{path[:200]!r} has changed, and was not kept before: files of more than {_SMALL.max_file_bytes >> 20} MiB are "
            "not, nor what cannot be read, or there was no time to read before the next cell"
        )

    async def lasting_changed(self, kept: Sequence[tuple[Snapshot, Spans]], *, quickly: bool = False) -> str:
        """Return, for a message, what has changed of that which a snapshot leaves out; empty if nothing has.

        Args:
            kept: See `times.first_lasting_changed`.
            quickly: Whether to look only near the top of it: there git and package managers leave traces.

        Raises:
            SnapshotError: The files cannot be read.
        """
        if not any(snapshot.root.totals.left_out for snapshot, _ in kept):
            return ""
        store = self._make_store()
        found = await _owned(lambda: self._snapshots(store).first_lasting_changed(kept, quickly=quickly), _forget)
        if found is None:
            return ""
        left_out, path = found
        if path == left_out:
            return f"{path[:200]!r} has changed or was removed, and snapshots leave it out"
        return f"{path[:200]!r} has changed, and snapshots leave out {left_out[:200]!r}"

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
                self._made = Snapshots(self._workspace, store, _journals(), limits, self.origins)
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


def _forget(_: object) -> None:
    """Drop a result that needs no owner."""
