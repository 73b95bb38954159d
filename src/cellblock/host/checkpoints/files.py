"""The files of one session's checkpoints: kept, compared and brought back, in threads."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from cellblock import config
from cellblock.errors import SnapshotError
from cellblock.host.closing import in_thread
from cellblock.host.files.walls import Walls
from cellblock.host.kernels.stopping import despite_cancellation
from cellblock.snapshots import Changes, FileChanges, Snapshot, SnapshotLimits, Snapshots, Store, pack
from cellblock.snapshots.journal import HeldError
from cellblock.snapshots.times import Spans
from cellblock.snapshots.tree import MIB
from cellblock.snapshots.written import Description
from cellblock.threads import run_aside

_log = logging.getLogger("cellblock.sessions")
T = TypeVar("T")

# What is kept automatically after each cell must cost little.
_SMALL = SnapshotLimits(max_files=20_000, max_total_bytes=256 * MIB, max_file_bytes=64 * MIB)
_PATIENCE = 30.0
"""Seconds that a restore waits for another one in the same directory"""
_LOOK_AGAIN = 0.01
_MAX_SHARED = 2_000
"""Files that are kept in a directory that nobody has given to the session: it is its program's, and may hold anything"""


class CheckpointFiles:
    """What `Checkpoints` does with the files of the session's directory.

    Attributes:
        own: Whether the program has given the session a directory of its own.
        too_many: Why no files are kept automatically any more: there are too many in a directory that is not its own.
    """

    def __init__(self, workspace: str, store: Callable[[], Store], walls: Walls | None, *, own: bool) -> None:
        """Look at nothing yet.

        Args:
            workspace: The directory.
            store: Returns where the host keeps files.
            walls: What the session cannot read or write: what is there is not the session's. None: it has no sandbox.
            own: Whether the program has given the session this directory.
        """
        self.own = own
        self.too_many = ""
        self._workspace = Path(os.path.realpath(workspace))
        self._make_store = store
        self._walls = walls
        self._made: Snapshots | None = None
        self._lock = threading.Lock()
        self._known: Snapshot | None = None

    def begin_with(self, known: Snapshot) -> None:
        """Take note of what an earlier host has read last: what has not changed since is not read again."""
        self._known = known

    def describe(self, snapshot: Snapshot | None) -> Description | None:
        """Return what it takes for a later host to find a snapshot; None if there is none, or no later host."""
        return None if snapshot is None else self._make_store().describe(snapshot)

    async def take(self) -> Snapshot:
        """Keep the files as they are.

        Raises:
            SnapshotError: They cannot be kept.
        """
        store = self._make_store()
        return await _owned(lambda: self._snapshots(store).take(), store.drop)

    async def take_small(self, stopped: Callable[[], bool], hurry: Callable[[], bool] = lambda: False) -> Snapshot | None:
        """Keep the files as they are, unless something begins to change them, or they are many.

        Args:
            stopped: Returns whether something changes them. Asked in another thread.
            hurry: Returns whether there is no time to read files. Asked in another thread.

        Returns:
            The snapshot; None if there is none.

        Raises:
            SnapshotError: They cannot be kept; or they are too many, and the message says so.
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
        """Return whether files have changed since they were kept automatically, as far as is told, or may have."""
        if self._made is None or self.too_many:
            return self._known is not None
        return self._made.touched()

    async def restore(
        self, snapshot: Snapshot, then: Callable[[], Coroutine[Any, Any, object]], *, within: Spans | None = None
    ) -> Changes:
        """Bring the files back. If another session restores files of the same directory now, this waits until it has.

        Args:
            snapshot: The files.
            then: Runs when they are back: makes what opens them. If it fails, they become again what they were.
            within: Replace and remove only what was last changed in these spans of time; see `Snapshots.restore`.

        Raises:
            SnapshotError: They are as they were, unless the message says more.
            CellblockError: Whatever `then` raises.
        """
        store, loop = self._make_store(), asyncio.get_running_loop()

        def finish() -> None:
            asyncio.run_coroutine_threadsafe(then(), loop).result()

        deadline = loop.time() + _PATIENCE
        while True:
            try:
                return await _owned(lambda: self._snapshots(store).restore(snapshot, finish, within=within), _forget)
            except HeldError:  # not waited for in the thread: `then` of the restore that is under way may need one
                if loop.time() > deadline:
                    raise
            await asyncio.sleep(_LOOK_AGAIN)

    async def changed_within(self, spans: Spans) -> str:
        """Return, for a message, whether files were changed within some spans of time; empty if none were.

        Raises:
            SnapshotError: The files cannot be read.
        """
        store = self._make_store()
        path = await _owned(lambda: self._snapshots(store).first_changed(spans), _forget)
        if path is None:
            return ""
        return "files have changed" if path == "." else f"{path[:200]!r} has changed"

    async def unkept_changed(self, snapshot: Snapshot, spans: Spans) -> str:
        """Return, for a message, whether a file has changed whose content was not kept; empty if none has.

        Raises:
            SnapshotError: The files cannot be read.
        """
        if not snapshot.unkept:
            return ""
        store = self._make_store()
        path = await _owned(lambda: self._snapshots(store).first_unkept_changed(snapshot, spans), _forget)
        if path is None:
            return ""
        return (
            f"{path[:200]!r} has changed, and was not kept before: files of more than {_SMALL.max_file_bytes >> 20} MiB are "
            "not, nor what there was no time for in a new session"
        )

    async def diff(self, before: Snapshot) -> FileChanges:
        """Return what has changed since.

        Raises:
            SnapshotError: The files cannot be read.
        """
        store = self._make_store()
        return await _owned(lambda: self._snapshots(store).diff(before), _forget)

    async def recover(self) -> None:
        """Finish a restore here during which its program was killed, before the session starts."""
        if not Snapshots.is_pending(self._workspace, _journals()):
            return
        try:
            store = self._make_store()
            if await _owned(lambda: self._snapshots(store).recover(), _forget):
                _log.warning("the files of %s are restored, as a program that was killed had begun to", self._workspace)
        except HeldError:
            pass  # nobody was killed: another session restores these files now
        except SnapshotError as error:
            _log.warning("%s", error)

    def hold(self, snapshot: Snapshot) -> Snapshot:
        """Return the same files once more, to be dropped apart."""
        again = replace(snapshot)
        self._make_store().keep(again)
        return again

    def pack(self, snapshot: Snapshot, left_out: list[tuple[str, str]]) -> Iterator[bytes]:
        """Return files as a tar stream, to be read in a thread; see `snapshots.pack`."""
        return pack(self._make_store(), snapshot, left_out)

    def drop(self, snapshot: Snapshot) -> None:
        """Forget a snapshot. Its files are removed in a thread: they may be many."""
        store = self._make_store()
        run_aside(lambda: store.drop(snapshot), "cellblock-files")

    async def close(self) -> None:
        """Forget what was read last. Snapshots stay. It can be repeated."""
        with self._lock:
            made, self._made = self._made, None
        if made is not None:
            await despite_cancellation(asyncio.ensure_future(in_thread(made.close)))

    def _snapshots(self, store: Store) -> Snapshots:
        with self._lock:
            if self._made is None:  # not earlier: this looks at the file system
                names = () if self._walls is None else self._walls.names(str(self._workspace))
                limits = SnapshotLimits(ignore=(*SnapshotLimits().ignore, *names))
                self._made = Snapshots(self._workspace, store, _journals(), limits)
                known, self._known = self._known, None
                if known is not None:
                    self._made.begin_with(known)
            return self._made


def make_store(*, lasting: bool) -> Store:
    """Make a place for the files of one host's checkpoints, and remove those of hosts that were killed.

    Not with the other directories of a host: files of one session are not to be read by another one whose policy is wide.

    Args:
        lasting: Whether the next host may take it over.

    Raises:
        SnapshotError: It cannot be made.
    """
    return Store.make(config.state_directory() / "snapshots", lasting=lasting)


def _journals() -> Path:
    return config.state_directory() / "restores"


async def _owned(work: Callable[[], T], forget: Callable[[T], Any]) -> T:
    """Do something in a thread. It is waited for even if the caller is cancelled; what it has made is then forgotten."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await despite_cancellation(task)
    except asyncio.CancelledError:
        if task.exception() is None:
            forget(task.result())
        raise
    return task.result()


def _forget(_: object) -> None:
    """Nothing was made that needs an owner."""
