"""The content of files, each kept once, under its digest."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from cellblock.errors import SnapshotError
from cellblock.leftovers import make_place, remove_abandoned, remove_place
from cellblock.snapshots import content
from cellblock.snapshots.beneath import create_file, open_file
from cellblock.snapshots.file import File, facts, is_kept, kept_as
from cellblock.snapshots.tree import MIB, Entry, Folder, Snapshot
from cellblock.snapshots.written import Description, Written

_MAX_BYTES = 8192 * MIB


class Store:
    """What all snapshots of one process share. Its methods can be called from any thread.

    A directory that no session can write to. It is empty at first, and goes with the process: snapshots are in its memory.
    If it is to outlive the process, what it takes to read them back is written there, too.

    Attributes:
        directory: Where it is.
        bytes: How many bytes the files in it have.
    """

    def __init__(
        self, directory: Path, max_bytes: int = _MAX_BYTES, *, lasting: bool = False, held: int | None = None
    ) -> None:
        """Make the directory.

        Args:
            directory: Its path. Nothing is there, unless it is held.
            max_bytes: How many bytes all files in it may have.
            lasting: Whether another process may take it over (`take_over`).
            held: Its descriptor, if another process has made it.

        Raises:
            SnapshotError: It cannot be made.
        """
        try:
            self._fd = make_place(str(directory)) if held is None else held
        except OSError as error:
            raise SnapshotError(f"cannot make a directory for snapshots, {directory}: {error.strerror}") from error
        self.bytes = 0
        self.directory = directory
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._written = Written(self._fd) if lasting else None
        self._counts: Counter[bytes] = Counter()
        self._sizes: dict[bytes, int] = {}
        self._snapshots: set[Snapshot] = set()
        self._folders: dict[int, tuple[Folder, int]] = {}
        self._parts: dict[int, tuple[dict[str, Entry], int]] = {}

    @classmethod
    def make(cls, directory: Path, *, lasting: bool = False) -> Self:
        """Make a store below a directory, and remove those there whose process was killed, unless somebody holds them.

        Args:
            directory: The directory.
            lasting: Whether another process may take the store over.

        Raises:
            SnapshotError: It cannot be made.
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
        """Go on with the store of a process that was killed. What none of its snapshots needs is removed.

        Args:
            directory: Where it is.
            held: Its descriptor, which is the store's from now on.
            described: Its snapshots.

        Returns:
            The store, and each snapshot; None for one of which something is missing.
        """
        store = cls(directory, lasting=True, held=held)
        return store, store._read(described)

    def _read(self, described: Sequence[Description]) -> list[Snapshot | None]:
        assert self._written is not None
        roots = self._written.read(one.root for one in described)
        made: list[Snapshot | None] = []
        for one in described:
            root = roots[one.root]
            made.append(None if root is None else Snapshot(root))
            if (snapshot := made[-1]) is not None:
                self._count_sizes(snapshot.root)
                self.keep(snapshot)
        self._written.keep_only(folder for folder, _ in self._folders.values())
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
                elif type(entry) is File and is_kept(entry) and (digest := facts(entry).digest) not in self._sizes:
                    self._sizes[digest] = facts(entry).size
                    self.bytes += self._sizes[digest]

    @property
    def held(self) -> int:
        """The descriptor that keeps others from taking the directory for abandoned."""
        return self._fd

    def describe(self, snapshot: Snapshot) -> Description | None:
        """Return what it takes to have a snapshot read back by another process; None if none may take the store over."""
        if self._written is None or snapshot not in self._snapshots:
            return None
        return Description(self._written.number(snapshot.root))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove everything. More than once is fine."""
        with self._lock:
            if self._fd >= 0:
                remove_place(str(self.directory))
                os.close(self._fd)
                self._fd, self._written = -1, None

    def add(self, source: int, limit: int) -> tuple[bytes, int]:
        """Keep the content of an open file until `release_file` is called as often as this.

        Returns:
            Its digest and its size.

        Raises:
            content.TooLargeError: It has more bytes than the limit.
            SnapshotError: The store is full.
            OSError: It cannot be read, or not be written.
        """
        data = content.read_small(source, limit)
        if data is not None:
            digest = content.hash_bytes(data)
            if self._held(digest):
                return digest, len(data)
        name = f"new-{next(self._numbers)}"
        target = create_file(name, self._fd)
        try:
            try:
                if data is not None:
                    content.write(target, data)
                    size = len(data)
                else:
                    digest, size = content.copy(source, target, limit)
            finally:
                os.close(target)
            self._place(name, digest, size)
        except BaseException:  # also an interrupt: no part of the content is left
            os.unlink(name, dir_fd=self._fd)
            raise
        return digest, size

    def _held(self, digest: bytes) -> bool:
        """Count one more user of what is there already; False if it is not."""
        with self._lock:
            if digest not in self._counts:
                return False
            self._counts[digest] += 1
            return True

    def _place(self, name: str, digest: bytes, size: int) -> None:
        with self._lock:
            if digest in self._counts:  # another thread was quicker, or it was too large to know before
                os.unlink(name, dir_fd=self._fd)
            else:
                self._check_room(size)
                os.rename(name, digest.hex(), src_dir_fd=self._fd, dst_dir_fd=self._fd)
                self._sizes[digest] = size
                self.bytes += size
            self._counts[digest] += 1

    def _check_room(self, size: int) -> None:
        if self.bytes + size > self._max_bytes:
            raise SnapshotError(
                f"snapshots of files would take more than {self._max_bytes:,} bytes: drop checkpoints, or leave out more",
                errno=errno.EDQUOT,
            )

    def release_file(self, digest: bytes) -> None:
        """Take back one call of `add`."""
        with self._lock:
            self._release(digest)

    def open(self, digest: bytes) -> int:
        """Open what is kept under a digest."""
        return open_file(digest.hex(), self._fd)

    def keep(self, snapshot: Snapshot) -> None:
        """Keep the files of a snapshot, all of which are there, until it is dropped."""
        self.retain(snapshot.root)
        self._snapshots.add(snapshot)

    def drop(self, snapshot: Snapshot) -> None:
        """Forget a snapshot. More than once is fine."""
        with self._lock:
            known = snapshot in self._snapshots
            self._snapshots.discard(snapshot)
        if known:
            self.release(snapshot.root)

    def check(self, snapshot: Snapshot) -> None:
        """Check that a snapshot is kept here.

        Raises:
            SnapshotError: It was dropped, or belongs to another store.
        """
        if snapshot not in self._snapshots:
            raise SnapshotError("these files are no longer kept: the snapshot was dropped, or belongs to another host")

    def retain(self, root: Folder) -> None:
        """Keep the files of a tree, all of which are there, until `release` is called as often as this.

        Each folder is counted, with the first count each of its parts, and with the first count of that its files: what trees
        share costs nothing.

        Raises:
            OSError: It is to outlive this process, and cannot be written. It is not kept then.
        """
        with self._lock:
            if self._written is not None:
                self._written.write(self._new_folders(root))
            pending = [root]
            while pending:
                folder = pending.pop()
                _, count = self._folders.get(id(folder), (folder, 0))
                self._folders[id(folder)] = folder, count + 1
                if count == 0:
                    for part in folder.entries.parts:
                        self._retain_part(part)
                    pending += _folders_in(folder)

    def _retain_part(self, part: dict[str, Entry]) -> None:
        _, count = self._parts.get(id(part), (part, 0))
        self._parts[id(part)] = part, count + 1
        if count == 0:
            self._counts.update(kept_as(entry) for entry in part.values() if type(entry) is File and is_kept(entry))

    def _new_folders(self, root: Folder) -> list[Folder]:
        """Return the folders of a tree that are not kept yet, each after those that are in it."""
        found: list[Folder] = []
        pending = [root] if id(root) not in self._folders else []
        while pending:
            folder = pending.pop()
            found.append(folder)
            pending += (one for one in _folders_in(folder) if id(one) not in self._folders)
        return found[::-1]

    def release(self, root: Folder) -> None:
        """Take back one call of `retain`. What is not needed otherwise is removed."""
        with self._lock:
            pending = [root]
            while pending:
                folder = pending.pop()
                _, count = self._folders.pop(id(folder))
                if count > 1:
                    self._folders[id(folder)] = folder, count - 1
                    continue
                if self._written is not None:
                    self._written.forget(folder)
                for part in folder.entries.parts:
                    self._release_part(part)
                pending += _folders_in(folder)

    def _release_part(self, part: dict[str, Entry]) -> None:
        _, count = self._parts.pop(id(part))
        if count > 1:
            self._parts[id(part)] = part, count - 1
            return
        for entry in part.values():
            if type(entry) is File and is_kept(entry):
                self._release(kept_as(entry))

    def _release(self, digest: bytes) -> None:
        self._counts[digest] -= 1
        if self._counts[digest] == 0:
            del self._counts[digest]
            self.bytes -= self._sizes.pop(digest)
            if self._fd >= 0:
                os.unlink(digest.hex(), dir_fd=self._fd)


def _folders_in(folder: Folder) -> list[Folder]:
    found = (folder.entries[name] for name in folder.entries.special)
    return [entry for entry in found if isinstance(entry, Folder)]
