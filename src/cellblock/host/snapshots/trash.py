"""The trash: files that operations replaced or removed, until they expire.

It is in the state directory, where no session can write. Files are moved one by one, never a folder: a process of the session
may still have the folder open, and could go from there to its parent folders.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from cellblock.common import config
from cellblock.common.open_flags import held
from cellblock.common.threads import run_aside
from cellblock.common.whole_file import sync
from cellblock.errors import FilesError
from cellblock.host.snapshots import content
from cellblock.host.snapshots.beneath import (
    create_file,
    is_node,
    made_folders,
    make_node,
    open_closed_file,
    open_folder,
    open_parent,
)
from cellblock.host.snapshots.file import PERMISSIONS
from cellblock.launch import leftovers
from cellblock.model.checkpoints import TrashedFile, TrashEntry

_LOG = logging.getLogger("cellblock.snapshots")
_ABOUT, _FILES = "about.json", "files"
_DEEPEST, _TRIES = 200, 5
_MOST_LISTED = 1000
_MOST_COPIED = 2**40
_DAY = 86_400.0
_LARGE = 16 * 2**20
_FEWEST = 1
"""Entries that each session keeps until they expire: a user may need the newest soon."""


_PAUSE, _PART = 60.0, 16
"""Seconds between two purges of one process, and the part of the limit whose use makes one due earlier."""


class Reason(NamedTuple):
    """Why files are moved to the trash.

    Attributes:
        operation: The operation: ``undo``, ``redo``, ``restore``, ``adopt``, ``load`` or ``trash``.
        cell: The number of the last undone cell; 0 if none.
    """

    operation: str
    cell: int = 0


class Entry:
    """The files that one operation moved to the trash.

    Attributes:
        id: Its id, which sorts by time.
        about: Its description.
        taken: The paths that were moved there.
    """

    def __init__(self, directory: Path, number: str, about: dict[str, Any]) -> None:
        """Name an entry of a session's trash without creating anything."""
        self.id = number
        self.about = about
        self.taken: list[str] = []
        self._directory = directory

    @property
    def described(self) -> tuple[str, str, dict[str, Any]]:
        """The arguments of `of`, valid in other processes."""
        return str(self._directory), self.id, self.about

    @classmethod
    def of(cls, described: list[Any]) -> Entry:
        """Return an entry by its description."""
        directory, number, about = described
        return cls(Path(directory), number, about)

    def take(self, folder: int, name: str, path: str) -> bool:
        """Move something from an open folder here. Return whether all of it was moved; the rest is unchanged.

        `path` is its path in the workspace.
        """
        try:
            with self._opened(make=True) as top:
                whole = self._take(folder, name, top, path.split("/"))
        except OSError as error:
            _LOG.warning("%r cannot be moved to the trash: %s", path[:200], error)
            return False
        if whole:
            self.taken.append(path)
        return whole

    @contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[int]:
        files = self._directory / self.id / _FILES
        if make and not files.is_dir():
            files.parent.mkdir(0o700, parents=True, exist_ok=True)
            (self._directory / self.id / _ABOUT).write_text(json.dumps(self.about))
            files.mkdir(0o700, exist_ok=True)  # last: if it exists, everything above does
        with held(os.open(files, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as top:
            yield top

    def _take(self, folder: int, name: str, top: int, path: list[str], depth: int = 0) -> bool:
        info = os.lstat(name, dir_fd=folder)
        if stat.S_ISDIR(info.st_mode):
            return self._take_folder(folder, name, top, path, info.st_mode, depth)
        *above, last = path
        with made_folders(top, above, 0o755) as parent:
            if stat.S_ISREG(info.st_mode):
                _purges.taken += info.st_size
                if not (info.st_size > _LARGE and info.st_nlink == 1 and _link(folder, name, parent, last)):
                    _copy(folder, name, parent, last)  # the session's code may have it open, or know another name of it
                os.unlink(name, dir_fd=folder)
            elif stat.S_ISLNK(info.st_mode):
                _move_link(folder, name, parent, last)
            elif is_node(info.st_mode):
                with contextlib.suppress(FileExistsError):
                    make_node(last, parent, info.st_mode)
                os.unlink(name, dir_fd=folder)
        return True  # anything else is a device, and has no content

    def _take_folder(self, folder: int, name: str, top: int, path: list[str], mode: int, depth: int) -> bool:
        if depth > _DEEPEST:
            return False
        with made_folders(top, path, 0o755):
            pass
        if (inner := leftovers.open_ours(name, folder)) is None:
            return True
        whole = True
        with held(inner):
            for one in os.listdir(inner):
                try:
                    whole &= self._take(inner, one, top, [*path, one], depth + 1)
                except OSError as error:
                    _LOG.warning("%r cannot be moved to the trash: %s", "/".join([*path, one])[:200], error)
                    whole = False
        with made_folders(top, path, 0o755) as made:  # last: a mode may deny changes. The trash must be able to read it
            os.fchmod(made, mode & PERMISSIONS | stat.S_IRUSR | stat.S_IXUSR)
        return whole

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the entry's files, links and folders with their paths, each folder before its content."""
        try:
            with self._opened() as top:
                yield from _walk(top, "")
        except FileNotFoundError:
            return

    @contextmanager
    def open(self, path: str) -> Iterator[tuple[int, str]]:
        """Open the parent folder of a path in the entry, and yield it with the last path component.

        Raises:
            OSError: The path does not exist.
        """
        if not _is_inside(path):
            raise FileNotFoundError(errno.ENOENT, "no path in the trash")
        with self._opened() as top, open_parent(top, path) as found:
            yield found

    def holds(self, path: str) -> bool:
        """Return whether the entry contains a path."""
        try:
            with self.open(path) as (folder, name):
                os.lstat(name, dir_fd=folder)
        except OSError:
            return False
        return True

    def bring(self, path: str, folder: int, name: str) -> None:
        """Copy a file or link of the entry to a folder."""
        with self.open(path) as (parent, its_name):
            copy_back(parent, its_name, folder, name)

    def listed(self) -> TrashEntry:
        """Return the entry as data."""
        found, more = list[TrashedFile](), 0
        for path, info in self.files():
            if stat.S_ISDIR(info.st_mode):
                continue
            if len(found) < _MOST_LISTED:
                found.append(TrashedFile(path, info.st_size))
            else:
                more += 1
        about = self.about
        kind = about["operation"], about["cell"]
        return TrashEntry(self.id, about["at"], *kind, tuple(found), more, about.get("expires", 0.0))

    def remove(self) -> None:
        """Delete the entry permanently."""
        leftovers.remove_place(str(self._directory / self.id))


class Unpacked(Entry):
    """The files of an archive in an open folder on the file system of the workspace, as if they were in the trash."""

    def __init__(self, folder: int) -> None:
        super().__init__(Path(), "", {})
        self._folder = folder

    @contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[int]:
        with held(open_folder(".", self._folder)) as top:
            yield top

    def bring(self, path: str, folder: int, name: str) -> None:
        """Link a file to a folder, or copy it if the file system has no hard links."""
        with self.open(path) as (parent, its_name):
            try:
                os.link(its_name, name, src_dir_fd=parent, dst_dir_fd=folder, follow_symlinks=False)
            except OSError:
                copy_back(parent, its_name, folder, name)


class Trash:
    """The trash of one session: of all sessions with its label in its workspace, including entries of killed processes."""

    def __init__(self, workspace: str, label: str) -> None:
        """Set the paths without creating anything. The label may be empty."""
        key = hashlib.sha256(os.fsencode(f"{workspace}\0{label}")).hexdigest()[:32]
        self.directory = _root() / key

    def new(self, why: Reason) -> Entry:
        """Name an entry for an operation that is about to begin."""
        now = time.time()
        # An id sorts by time, and is unique.
        number = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now))}{int(now % 1 * 1000):03}-{secrets.token_hex(3)}"
        days, _ = config.trash_limits()
        about = {"at": now, "operation": why.operation, "cell": why.cell, "expires": now + days * _DAY}
        return Entry(self.directory, number, about)

    def entries(self) -> list[Entry]:
        """Return the entries, newest first."""
        return sorted(_entries(self.directory), key=lambda entry: entry.id, reverse=True)

    def find(self, entry: str, path: str) -> Entry:
        """Return an entry by its id, or the newest one that contains a path.

        Raises:
            FilesError: No entry matches.
        """
        for one in self.entries():
            if (one.id == entry if entry else True) and (not path or one.holds(path)):
                return one
        what = f"{path[:200]!r}" if path else f"the entry {entry[:100]!r}" if entry else "anything"
        raise FilesError(
            f"the trash of this session has no {what}: list its entries with trash()", path=path, errno=errno.ENOENT
        )

    def take_over(self, other: Trash) -> None:
        """Take over the entries of another session's trash, because that session ends."""
        with contextlib.suppress(OSError):
            self.directory.mkdir(0o700, parents=True, exist_ok=True)
            for entry in _entries(other.directory):
                os.rename(other.directory / entry.id, self.directory / entry.id)


def copy_back(folder: int, name: str, parent: int, to: str) -> None:
    """Copy something from an entry to a folder, and sync it to the disk."""
    info = os.lstat(name, dir_fd=folder)
    if stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(name, dir_fd=folder), to, dir_fd=parent)
    elif stat.S_ISDIR(info.st_mode):
        os.mkdir(to, 0o700, dir_fd=parent)
        with held(open_folder(name, folder)) as source, held(open_folder(to, parent)) as target:
            for one in os.listdir(source):
                copy_back(source, one, target, one)
            os.fchmod(target, info.st_mode & PERMISSIONS)
            sync(target)
    elif is_node(info.st_mode):
        make_node(to, parent, info.st_mode)
    else:
        with held(open_closed_file(name, folder)) as source, held(create_file(to, parent)) as target:
            content.copy_out(source, target)
            _set_times(target, info)
            sync(target)
    with contextlib.suppress(OSError):  # only root can change owners
        os.chown(to, info.st_uid, info.st_gid, dir_fd=parent, follow_symlinks=False)


def _set_times(target: int, info: os.stat_result) -> None:
    """Give a copied file the permissions and the modification time of the original."""
    os.fchmod(target, info.st_mode & PERMISSIONS)
    os.utime(target, ns=(info.st_mtime_ns, info.st_mtime_ns))


class _Purges:
    """When the trash is purged. Each purge walks through the whole trash, which takes longer than many undos.

    Attributes:
        taken: Bytes that this process has moved to the trash since the last purge.
    """

    def __init__(self) -> None:
        self.taken = 0
        self._next = 0.0

    def is_due(self) -> bool:
        """Return whether a purge is due, which the caller then does."""
        now = time.monotonic()
        if now < self._next and self.taken < config.trash_limits()[1] // _PART:
            return False
        self._next, self.taken = now + _PAUSE, 0
        return True


_purges = _Purges()


def purge_if_due() -> None:
    """Purge the trash in a thread, if it was not done lately."""
    if _purges.is_due():
        run_aside(purge, "cellblock-trash")


def purge() -> None:
    """Delete expired entries, and the oldest entries of the largest session if all use too much space."""
    _, most = config.trash_limits()
    now = time.time()
    sizes: dict[Path, list[tuple[str, int, Entry]]] = {}
    try:
        for directory in _root().iterdir():
            for entry in _entries(directory):
                if not now < entry.about.get("expires", 0.0) < now + 10_000 * _DAY:
                    entry.remove()
                else:
                    size = sum(info.st_size for _, info in entry.files())
                    sizes.setdefault(directory, []).append((entry.id, size, entry))
            with contextlib.suppress(OSError):
                directory.rmdir()
    except OSError:
        return  # it is missing
    for kept in sizes.values():
        kept.sort(key=lambda one: one[0], reverse=True)
    while sum(size for kept in sizes.values() for _, size, _ in kept) > most:
        largest = max(
            (kept for kept in sizes.values() if len(kept) > _FEWEST),
            key=lambda kept: sum(size for _, size, _ in kept),
            default=None,
        )
        if largest is None:
            return
        largest.pop()[2].remove()


def _root() -> Path:
    return config.state_directory() / "trash"


def _entries(directory: Path) -> Iterator[Entry]:
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        try:
            about = json.loads((directory / name / _ABOUT).read_text())
        except (OSError, ValueError):
            about = _unknown(directory / name)
        yield Entry(directory, name, about)


def _unknown(place: Path) -> dict[str, Any]:
    """Return a default for an unreadable description: its process was killed, or the disk was full."""
    try:
        at = place.stat().st_mtime
    except OSError:
        at = time.time()  # it is being removed
    days, _ = config.trash_limits()
    return {"at": at, "operation": "", "cell": 0, "expires": at + days * _DAY}


def _is_inside(path: str) -> bool:
    """Return whether an untrusted path is relative and has no ``..``."""
    return not {"", ".", ".."} & {*path.split("/")}


def _walk(folder: int, path: str) -> Iterator[tuple[str, os.stat_result]]:
    for name in sorted(os.listdir(folder)):
        info, where = os.lstat(name, dir_fd=folder), f"{path}/{name}" if path else name
        yield where, info
        if stat.S_ISDIR(info.st_mode):
            with held(open_folder(name, folder)) as inner:
                yield from _walk(inner, where)


def _link(folder: int, name: str, parent: int, to: str) -> bool:
    """Hard-link a file that is too large to copy into an entry. Return whether that is possible.

    It is not renamed: open descriptors would show its new path, not its removal.
    """
    try:
        os.link(name, to, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
    except FileExistsError:  # by a process that was killed before it could remove this
        pass
    except OSError:
        return False  # for example, on another file system
    return True


def _move_link(folder: int, name: str, parent: int, to: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.symlink(os.readlink(name, dir_fd=folder), to, dir_fd=parent)
    os.unlink(name, dir_fd=folder)


def _copy(folder: int, name: str, parent: int, to: str) -> None:
    """Copy a file to an entry. If another process still writes to it, copy it again."""
    with held(open_closed_file(name, folder)) as source:
        for _ in range(_TRIES):
            before = os.fstat(source)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(to, dir_fd=parent)
            with held(create_file(to, parent)) as target:
                try:
                    os.lseek(source, 0, os.SEEK_SET)
                    content.copy(source, target, _MOST_COPIED)
                    _set_times(target, before)
                except BaseException:  # includes interrupts: leave no partial copy
                    os.unlink(to, dir_fd=parent)
                    raise
            after = os.fstat(source)
            if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size):
                return
        os.unlink(to, dir_fd=parent)
        raise OSError(errno.EBUSY, "another program keeps writing to it")
