"""Reads a workspace. What has not changed since the last time is not read again."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping

from cellblock.errors import SnapshotError
from cellblock.sandbox.placeholders import is_placeholder
from cellblock.snapshots.beneath import CHANGED, open_file, open_folder, open_parent, set_mode
from cellblock.snapshots.content import TooLargeError
from cellblock.snapshots.ignored import OURS, Ignored
from cellblock.snapshots.tree import (
    PERMISSIONS,
    UNSEEN,
    Entry,
    File,
    Folder,
    LeftOut,
    Link,
    Owner,
    SnapshotLimits,
    facts,
    is_kept,
    pack,
    seen,
    was_seen,
)

Read = Callable[[int, int], tuple[bytes, int]]
"""Takes an open file and a limit; returns the digest and the size of the file."""

_MOST_SHOWN = 100
_UNREADABLE = frozenset((errno.EACCES, errno.EPERM, errno.EIO, errno.EAGAIN, errno.ESTALE, errno.ETXTBSY)) | CHANGED
"""With these, one file or folder cannot be read. Other errors end the walk."""

_READABLE = stat.S_IRUSR | stat.S_IXUSR
_TICK = 50_000_000
_COARSE_TICK = 4_000_000_000
"""Nanoseconds in which a file can change twice and look unchanged; the second on file systems that count whole seconds."""

_IGNORED = LeftOut("it is among the names that are ignored", folder=True)
_PLACEHOLDER = LeftOut("it only keeps a name from being used", folder=True)
_SPECIAL = LeftOut("it is a FIFO, a socket or a device", folder=False, ours=True)
_UNREAD = LeftOut("it cannot be read", folder=False, ours=True)
_FOREIGN = LeftOut("it is on another file system", folder=True)
_DEEP = LeftOut("it is nested too deep", folder=True)
_CLOSED = LeftOut("it cannot be listed", folder=True)
_CROWDED = LeftOut("there are too many files before it", folder=True)
_LARGE = LeftOut("it is too large", folder=False, ours=True)
_FULL = LeftOut("all files together are too large", folder=False, ours=True)

_TOO_MUCH = (_DEEP, _CROWDED, _LARGE, _FULL)


class StoppedError(Exception):
    """A walk was given up."""


class Walk:
    """One walk through a workspace.

    Attributes:
        count: How many files, folders and links were found.
        files: How many of the files are not left out.
        bytes: How many bytes these have.
        left_out: Paths that are left out, and why: a hundred at most.
        left_out_count: How many these are in all.
        whole_tree: Whether nothing was left out because it is too large or there is too much.
        max_files: How many files, folders and links it looks at.
        unkept: How many files were found that are not read.
    """

    def __init__(
        self,
        limits: SnapshotLimits,
        read: Read,
        *,
        searching: bool = False,
        stopped: Callable[[], bool] = lambda: False,
        hurry: Callable[[], bool] | None = None,
    ) -> None:
        """Prepare a walk.

        Args:
            limits: What to leave out.
            read: Reads a file.
            searching: Whether only what is needed to compare with another tree is read. Then sizes have no limits, and
                folders that cannot be listed but were in that tree are given permissions.
            stopped: Asked now and then: whether to give up.
            hurry: Asked before a file is read: whether to read no more. Then what is not read, because of that or because it
                is too large, is not left out: what the system says of it is known (`tree.is_kept`).
        """
        self.unkept = 0
        self._hurry = hurry
        self.count = 0
        self.files = 0
        self.bytes = 0
        self.left_out: list[tuple[str, str]] = []
        self.left_out_count = 0
        self.whole_tree = True
        self._loosened: list[tuple[str, int]] = []
        self._read = read
        self._stopped = stopped
        self._searching = searching
        self._max_depth = limits.max_depth
        # To remove what code has made too many of, it must be found.
        self.max_files = limits.max_files * (10 if searching else 1)
        self._max_bytes, self._max_file = limits.max_total_bytes, limits.max_file_bytes
        if searching:
            self._max_bytes = sys.maxsize
        self._ignored = Ignored(limits.ignore)
        self._device = -1
        self._began = 0

    def whole(self, top: int, known: Folder | None, wanted: Folder | None = None) -> Folder:
        """Read a workspace.

        Args:
            top: The workspace, opened.
            known: What was read the last time.
            wanted: What is to be compared with, in a search.

        Returns:
            What it holds; `known` itself if that has not changed.

        Raises:
            StoppedError: It was to give up.
            SnapshotError: A file was read, but cannot be kept.
        """
        self._began = time.time_ns()
        self._device = os.fstat(top).st_dev
        return self._folder(top, "", 0, known, wanted)

    @property
    def is_cut_off(self) -> bool:
        """Whether there may be more than it has looked at."""
        return self.count >= self.max_files

    def tighten(self, top: int) -> None:
        """Give folders back the permissions that they had before they were searched."""
        while self._loosened:
            path, mode = self._loosened.pop()
            with contextlib.suppress(OSError), open_parent(top, path) as (parent, name):
                set_mode(name, parent, mode)

    def _folder(self, fd: int, path: str, depth: int, known: Folder | None, wanted: Folder | None) -> Folder:
        before: Mapping[str, Entry] = known.entries if known else {}
        found: dict[str, Entry] = {}
        folders: list[str] = []
        complete = True
        if self._stopped():
            raise StoppedError
        ignores, ignored = self._ignored.anywhere, self._ignored.in_folder(path)
        with os.scandir(fd) as entries:
            for entry in entries:
                if self.count >= self.max_files:
                    complete = self.whole_tree = False
                    self._leave_out(path, "", "there are more files than a snapshot holds")
                    break
                self.count += 1
                name = entry.name
                old = before.get(name)
                if depth == 0 and name.startswith(OURS):
                    continue  # removed since it was listed
                if ignores(name) or name in ignored:
                    found[name] = self._left(path, name, _IGNORED)
                    continue
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                except PermissionError:
                    found[name] = self._left(path, name, _UNREAD)
                    continue
                kind = info.st_mode & 0o170000  # S_IFMT: this is done for every file
                if kind == stat.S_IFREG:
                    if (
                        type(old) is File
                        and was_seen(old, seen(info))
                        and is_kept(old)
                        and self.bytes + info.st_size <= self._max_bytes
                    ):
                        self.files += 1
                        self.bytes += info.st_size
                        found[name] = old
                    else:
                        file = self._file(fd, path, name, info, wanted)
                        found[name] = old if old == file and old is not None else file  # its folder can be reused then
                elif kind == stat.S_IFDIR:
                    folders.append(name)
                elif kind == stat.S_IFLNK:
                    link = self._link(fd, path, name, info)
                    found[name] = old if old == link and old is not None else link
                else:
                    found[name] = self._left(path, name, _SPECIAL)
        for name in folders:
            old, want = before.get(name), wanted.entries.get(name) if wanted else None
            found[name] = self._subfolder(
                fd, path, name, depth + 1, old if isinstance(old, Folder) else None, want if isinstance(want, Folder) else None
            )
        info = os.fstat(fd)
        mode, owner = info.st_mode & PERMISSIONS, _owner(info)
        whole = Folder(mode, owner, found, complete)
        return known if known and _is_reused(whole, known) else whole

    def _subfolder(self, fd: int, above: str, name: str, depth: int, known: Folder | None, wanted: Folder | None) -> Entry:
        if depth > self._max_depth:
            return self._left(above, name, _DEEP)
        if self.count >= self.max_files:
            return self._left(above, name, _CROWDED)
        path = f"{above}/{name}" if above else name
        mode = None
        try:
            if wanted is not None:
                mode = self._loosen(fd, path, name)
            inner = open_folder(name, fd)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            return self._left(above, name, _CLOSED)
        try:
            info = os.fstat(inner)
            if info.st_dev != self._device:
                return self._left(above, name, _FOREIGN)
            if is_placeholder(info.st_mode):
                return _PLACEHOLDER
            folder = self._folder(inner, path, depth, known, wanted)
            return folder if mode is None else folder._replace(mode=mode)
        finally:
            os.close(inner)

    def _loosen(self, fd: int, path: str, name: str) -> int | None:
        """Make a folder readable whose mode denies that to us; return that mode."""
        mode = os.lstat(name, dir_fd=fd).st_mode & PERMISSIONS
        if mode & _READABLE == _READABLE:
            return None
        set_mode(name, fd, mode | stat.S_IRWXU)
        self._loosened.append((path, mode))
        return mode

    def _file(self, fd: int, path: str, name: str, info: os.stat_result, wanted: Folder | None) -> Entry:
        if self._searching:
            want = wanted.entries.get(name) if wanted else None
            if isinstance(want, File) and not is_kept(want):
                return pack(info, b"", info.st_size, seen(info))
            if not isinstance(want, File) or facts(want).size != info.st_size:
                return pack(info, b"", info.st_size, UNSEEN)
        room = min(self._max_file, self._max_bytes - self.bytes)
        if self._hurry is not None and (info.st_size > room or self._hurry()):
            return self._pass_by(info)
        if info.st_size > room:
            return self._left(path, name, _LARGE if info.st_size > self._max_file else _FULL)
        try:
            source = open_file(name, fd)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            return self._left(path, name, _UNREAD)
        try:
            if self._stopped():
                raise StoppedError
            info = os.fstat(source)
            if not stat.S_ISREG(info.st_mode) or info.st_dev != self._device:
                return self._left(path, name, _SPECIAL)
            digest, size = self._read(source, room)
            # What changes while it is read, or may change in the same tick of the clock, is read again the next time.
            settled = seen(info) == seen(os.fstat(source)) and _is_settled(info, self._began)
        except TooLargeError:
            return self._left(path, name, _LARGE) if self._hurry is None else self._pass_by(info)
        except SnapshotError:
            raise
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            return self._left(path, name, _UNREAD)
        finally:
            os.close(source)
        self.files += 1
        self.bytes += size
        return pack(info, digest, size, seen(info) if settled else UNSEEN)

    def _pass_by(self, info: os.stat_result) -> File:
        """Return a file that is not read."""
        self.files += 1
        self.unkept += 1
        return pack(info, b"", info.st_size, seen(info))

    def _link(self, fd: int, path: str, name: str, info: os.stat_result) -> Entry:
        try:
            return Link(os.readlink(name, dir_fd=fd), _owner(info))
        except OSError:
            return self._left(path, name, _UNREAD)

    def _left(self, path: str, name: str, entry: LeftOut) -> LeftOut:
        self._leave_out(path, name, entry.reason)
        if entry in _TOO_MUCH:
            self.whole_tree = False
        return entry

    def _leave_out(self, path: str, name: str, reason: str) -> None:
        self.left_out_count += 1
        if len(self.left_out) < _MOST_SHOWN:
            self.left_out.append((f"{path}/{name}" if path else name, reason))


def _is_reused(folder: Folder, known: Folder) -> bool:
    """Whether everything in a folder was reused, by identity, so that the folder can be reused, too."""
    if (known.mode, known.owner, known.complete) != (folder.mode, folder.owner, folder.complete):
        return False
    before = known.entries
    return len(before) == len(folder.entries) and all(before.get(name) is entry for name, entry in folder.entries.items())


def _is_settled(info: os.stat_result, began: int) -> bool:
    """Whether a change from now on would show. Code can set the one time of a file, but not the other."""
    tick = _TICK if info.st_ctime_ns % 1_000_000 else _COARSE_TICK
    return info.st_ctime_ns < began - tick


def _owner(info: os.stat_result) -> Owner:
    return info.st_uid, info.st_gid
