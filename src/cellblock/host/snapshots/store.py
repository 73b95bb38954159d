"""The store of file contents. Each content is stored once, under its digest."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from cellblock.common.open_flags import held
from cellblock.errors import SnapshotError
from cellblock.host.snapshots import content
from cellblock.host.snapshots.beneath import create_file, open_file
from cellblock.host.snapshots.entries import Entry, Folder
from cellblock.host.snapshots.file import File, is_kept, kept_as, size_of
from cellblock.host.snapshots.tree import MIB, Snapshot
from cellblock.host.snapshots.written import Description, Written
from cellblock.launch.leftovers import make_place, remove_abandoned, remove_place

_MAX_BYTES = 8192 * MIB
_FEW_PARTS = 64


class Store:
    """The content store of all snapshots of one process. Any thread can call its methods.

    It is a directory that no session can write to. It starts empty and is removed with the process, whose memory holds the
    snapshots. A lasting store's directory also describes the snapshots for the next process.

    Attributes:
        directory: Path.
        bytes: Total size of its files.
        generation: How often its content was lost because the directory was removed.
        on_renewed: Called in any thread when the directory was created again. Replaceable.
    """

    def __init__(
        self, directory: Path, max_bytes: int = _MAX_BYTES, *, lasting: bool = False, held: int | None = None
    ) -> None:
        """Create the directory.

        Args:
            directory: Path. It must not exist, unless `held` is given.
            max_bytes: Maximum total size of its files.
            lasting: Whether another process may take it over (`take_over`).
            held: Its descriptor, if another process created it.

        Raises:
            SnapshotError: The directory cannot be created.
        """
        try:
            self._fd = make_place(str(directory)) if held is None else held
        except OSError as error:
            raise SnapshotError(f"cannot make a directory for snapshots, {directory}: {error.strerror}") from error
        self.bytes = self.generation = 0
        self.on_renewed: Callable[[], object] = lambda: None
        self.directory = directory
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._written = Written(self._fd) if lasting else None
        self._counts: Counter[bytes] = Counter()
        self._sizes: dict[bytes, int] = {}
        self._payers: dict[bytes, str] = {}
        self._shares: Counter[str] = Counter()
        self._snapshots: set[Snapshot] = set()
        self._parts: dict[int, tuple[dict[str, Entry], int]] = {}

    @classmethod
    def make(cls, directory: Path, *, lasting: bool = False) -> Self:
        """Create a store in a directory, and remove stores of killed processes that no custodian holds.

        Another process can take over a lasting store.

        Raises:
            SnapshotError: The store cannot be created.
        """
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in os.listdir(directory):
                remove_abandoned(str(directory / name))
        except OSError as error:
            raise SnapshotError(f"cannot make a directory for snapshots, {directory}: {error.strerror}") from error
        return cls(directory / f"{os.getpid()}-{secrets.token_hex(8)}", lasting=lasting)

    @classmethod
    def take_over(cls, directory: Path, held: int, described: Sequence[Description]) -> tuple[Self, list[Snapshot | None]]:
        """Continue with a killed process's store, whose descriptor it owns. Content that no snapshot needs is removed.

        Returns:
            The store, and each snapshot; None for an incomplete one.
        """
        store = cls(directory, lasting=True, held=held)
        return store, store._read(described)

    def _read(self, described: Sequence[Description]) -> list[Snapshot | None]:
        assert self._written is not None
        made = [None if root is None else Snapshot(root) for root in self._written.read(described)]
        for snapshot in made:
            if snapshot is not None:
                self._count_sizes(snapshot.root)
                self.keep(snapshot)
        self._written.keep_only(part for part, _ in self._parts.values())
        needed = self._written.names() | {digest.hex() for digest in self._counts}
        for name in os.listdir(self._fd):
            if name not in needed:
                os.unlink(name, dir_fd=self._fd)
        return made

    def _count_sizes(self, root: Folder) -> None:
        pending = [root]
        while pending:
            for entry in pending.pop().entries.values():
                if type(entry) is Folder:
                    pending.append(entry)
                elif type(entry) is File and is_kept(entry) and (digest := kept_as(entry)) not in self._sizes:
                    self._sizes[digest] = size_of(entry)
                    self.bytes += self._sizes[digest]

    @property
    def held(self) -> int:
        """The descriptor that marks the directory as in use."""
        return self._fd

    def describe(self, snapshot: Snapshot) -> Description | None:
        """Describe a snapshot for another process; None if the store cannot be taken over."""
        if self._written is None or snapshot not in self._snapshots:
            return None
        return self._written.describe(snapshot.root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove everything. Idempotent."""
        with self._lock:
            if self._fd >= 0:
                remove_place(str(self.directory))
                os.close(self._fd)
                self._fd, self._written = -1, None

    def renew(self) -> None:
        """Create a removed directory again, without content: all earlier snapshots are lost.

        Raises:
            SnapshotError: The directory cannot be created.
        """
        with self._lock:
            if self._fd < 0 or os.fstat(self._fd).st_nlink:
                return
            try:
                self.directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                gone, self._fd = self._fd, make_place(str(self.directory))
            except OSError as error:
                raise SnapshotError(f"cannot make a directory for snapshots, {self.directory}: {error.strerror}") from error
            os.close(gone)
            self._written = None if self._written is None else Written(self._fd)
            for kept in (self._counts, self._sizes, self._snapshots, self._parts, self._payers, self._shares):
                kept.clear()
            self.bytes, self.generation = 0, self.generation + 1
        self.on_renewed()

    def add(self, source: int, limit: int, workspace: str) -> tuple[bytes, int]:
        """Store the content of an open file, until `release_file` was called as often as this.

        Args:
            source: The file's descriptor.
            limit: Maximum size in bytes.
            workspace: The file's workspace, to which new content is charged. A workspace can fill half of the space that the
                others leave, so that there is always room for another one.

        Returns:
            The digest and the size.

        Raises:
            content.TooLargeError: The file exceeds the limit.
            SnapshotError: The store is full, or the workspace has used its share.
            OSError: The file cannot be read or written.
        """
        data = content.read_small(source, limit)
        if data is not None:
            digest = content.hash_bytes(data)
            if self._held(digest):
                return digest, len(data)
        name = f"new-{next(self._numbers)}"
        target = create_file(name, self._fd)
        try:
            with held(target):
                if data is not None:
                    content.write(target, data)
                    size = len(data)
                else:
                    digest, size = content.copy(source, target, limit)
            self._place(name, digest, size, workspace)
        except BaseException:  # includes interrupts: leave no partial content
            os.unlink(name, dir_fd=self._fd)
            raise
        return digest, size

    def _held(self, digest: bytes) -> bool:
        """Count another use of existing content. Return False if it does not exist."""
        with self._lock:
            if digest not in self._counts or not self._is_there(digest):
                return False
            self._counts[digest] += 1
            return True

    def _is_there(self, digest: bytes) -> bool:
        """Return whether stored content is still there."""
        return os.access(digest.hex(), os.F_OK, dir_fd=self._fd)

    def _place(self, name: str, digest: bytes, size: int, workspace: str) -> None:
        with self._lock:
            # Another thread was faster, or the file was too large to know before.
            if digest in self._counts and self._is_there(digest):
                os.unlink(name, dir_fd=self._fd)
            else:
                self._check_room(size, workspace)
                os.rename(name, digest.hex(), src_dir_fd=self._fd, dst_dir_fd=self._fd)
                if digest not in self._sizes:
                    self._sizes[digest] = size
                    self.bytes += size
                    self._payers[digest] = workspace
                    self._shares[workspace] += size
            self._counts[digest] += 1

    def _check_room(self, size: int, workspace: str) -> None:
        left = self._max_bytes - self.bytes - size
        if left < self._shares[workspace] + size:
            raise SnapshotError(
                f"snapshots of the files in {workspace} would take more than half of the {self._max_bytes:,} bytes that all "
                "sessions have together, less what others use: drop checkpoints, or exclude more files",
                errno=errno.EDQUOT,
            )

    def release_file(self, digest: bytes) -> None:
        """Revert one call of `add`."""
        with self._lock:
            self._release(digest)

    def open(self, digest: bytes) -> int:
        """Open the content with a digest.

        Raises:
            SnapshotError: The content was removed.
        """
        try:
            return open_file(digest.hex(), self._fd)
        except FileNotFoundError as error:
            raise SnapshotError(
                f"a saved file was removed from {self.directory}: only cellblock may remove files there"
            ) from error

    def keep(self, snapshot: Snapshot) -> None:
        """Keep the files of a snapshot, all of which are in the store, until it is dropped."""
        self.retain(snapshot.root)
        self._snapshots.add(snapshot)

    def drop(self, snapshot: Snapshot) -> None:
        """Drop a snapshot. Idempotent."""
        with self._lock:
            known = snapshot in self._snapshots
            self._snapshots.discard(snapshot)
        if known:
            self.release(snapshot.root)

    def drop_shared(self, snapshot: Snapshot) -> bool:
        """Drop a snapshot if another one has the same files, so that none is removed. This never waits.

        Returns:
            Whether it was dropped. Otherwise call `drop`.
        """
        parts = snapshot.root.entries.parts
        if len(parts) > _FEW_PARTS or not self._lock.acquire(blocking=False):
            return False
        try:
            if snapshot not in self._snapshots or any(self._parts[id(part)][1] == 1 for part in parts):
                return False
            self._snapshots.remove(snapshot)
            for part in parts:
                self._parts[id(part)] = part, self._parts[id(part)][1] - 1
            return True
        finally:
            self._lock.release()

    def has(self, snapshot: Snapshot) -> bool:
        """Return whether a snapshot is in the store."""
        return snapshot in self._snapshots

    def check(self, snapshot: Snapshot) -> None:
        """Check that a snapshot is in the store.

        Raises:
            SnapshotError: The snapshot was dropped, or belongs to another store.
        """
        if not self.has(snapshot):
            raise SnapshotError(
                "these files no longer exist: the snapshot was dropped or belongs to another host, or another program "
                f"emptied {self.directory.parent}"
            )

    def retain(self, root: Folder) -> None:
        """Keep the files of a tree, all of which are in the store, until `release` was called as often as this.

        References are counted per part of a folder, and per file only for the first reference to its part, so that shared
        parts cost nothing.

        Raises:
            OSError: A lasting store could not record the tree, and does not keep it.
        """
        with self._lock:
            if self._written is not None:
                self._written.write(self._new_parts(root))
            pending = [*root.entries.parts]
            while pending:
                part = pending.pop()
                _, count = self._parts.get(id(part), (part, 0))
                self._parts[id(part)] = part, count + 1
                if count == 0:
                    self._counts.update(kept_as(entry) for entry in part.values() if type(entry) is File and is_kept(entry))
                    for entry in part.values():
                        if type(entry) is Folder:
                            pending += entry.entries.parts

    def _new_parts(self, root: Folder) -> list[dict[str, Entry]]:
        """Return the parts of a tree that are not stored yet, each after its subfolders' parts."""
        found: list[dict[str, Entry]] = []
        pending = [part for part in root.entries.parts if id(part) not in self._parts]
        while pending:
            part = pending.pop()
            found.append(part)
            for entry in part.values():
                if type(entry) is Folder:
                    pending += (one for one in entry.entries.parts if id(one) not in self._parts)
        return found[::-1]

    def release(self, root: Folder) -> None:
        """Revert one call of `retain`. Content that is no longer needed is removed."""
        with self._lock:
            pending = [*root.entries.parts]
            while pending:
                part = pending.pop()
                _, count = self._parts.pop(id(part), (part, 0))
                if count == 0:  # lost with the directory
                    continue
                if count > 1:
                    self._parts[id(part)] = part, count - 1
                    continue
                if self._written is not None:
                    self._written.forget(part)
                for entry in part.values():
                    if type(entry) is File and is_kept(entry):
                        self._release(kept_as(entry))
                    elif type(entry) is Folder:
                        pending += entry.entries.parts

    def _release(self, digest: bytes) -> None:
        if digest not in self._counts:  # lost with the directory
            return
        self._counts[digest] -= 1
        if self._counts[digest] == 0:
            del self._counts[digest]
            size = self._sizes.pop(digest, 0)  # none if the directory was removed since the snapshot
            self.bytes -= size
            if (payer := self._payers.pop(digest, None)) is not None:  # unknown after a takeover
                self._shares[payer] -= size
                if not self._shares[payer]:
                    del self._shares[payer]
            if self._fd >= 0:
                with contextlib.suppress(FileNotFoundError):  # an external program removed it
                    os.unlink(digest.hex(), dir_fd=self._fd)
