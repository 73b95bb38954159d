"""Reads a workspace. Files unchanged since the last time are not read again."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Container

from cellblock.errors import SnapshotError
from cellblock.host.snapshots.beneath import CHANGED, open_file, open_folder, open_parent, set_mode, status
from cellblock.host.snapshots.content import TooLargeError
from cellblock.host.snapshots.entries import Entries, Entry, Folder, LeftOut
from cellblock.host.snapshots.file import (
    PERMISSIONS,
    UNSEEN,
    File,
    Link,
    Owner,
    doubted,
    facts,
    is_kept,
    kept_as,
    pack,
    seen,
    unsettled,
    was_seen,
)
from cellblock.host.snapshots.ignored import OURS, Ignored
from cellblock.host.snapshots.tree import SnapshotLimits, total
from cellblock.host.snapshots.watch import Dirt, Watch
from cellblock.walls.sandbox.placeholders import is_placeholder

Read = Callable[[int, int], tuple[bytes, int]]
"""Takes an open file and a limit; returns the digest and the size of the file."""

_UNREADABLE = frozenset((errno.EACCES, errno.EPERM, errno.EIO, errno.EAGAIN, errno.ESTALE, errno.ETXTBSY)) | CHANGED
"""With these errors, a file or folder is skipped as unreadable. Other errors end the walk."""

_READABLE = stat.S_IRUSR | stat.S_IXUSR
_TICK = 50_000_000
_COARSE_TICK = 4_000_000_000
"""Nanoseconds within which a file can change twice and look unchanged; the second for file systems with whole seconds."""

_IGNORED = LeftOut("its name is ignored", folder=True)
_NAMED = _IGNORED._replace(lasting=True)
_PLACEHOLDER = LeftOut("it is a placeholder of the sandbox", folder=True, told=False)
_SPECIAL = LeftOut("it is a FIFO, a socket or a device", folder=False, ours=True, lasting=True)
_UNREAD = LeftOut("it cannot be read", folder=False, ours=True, closed=True)
_FOREIGN = LeftOut("it is on another file system", folder=True)
_DEEP = LeftOut("it is nested too deep", folder=True, too_much=True)
_CLOSED = LeftOut("it cannot be listed", folder=True, closed=True)
_CROWDED = LeftOut("the limit on files was reached before it", folder=True, too_much=True)
_LARGE = LeftOut("it is too large", folder=False, ours=True, too_much=True)
_FULL = LeftOut("the limit on the total size was reached", folder=False, ours=True, too_much=True)


class StoppedError(Exception):
    """A walk was stopped."""


class Walk:
    """A walk through a workspace, or through the parts that may have changed.

    Attributes:
        count: Number of files, folders and links found.
        max_files: Limit of that number.
    """

    def __init__(
        self,
        limits: SnapshotLimits,
        read: Read,
        *,
        searching: bool = False,
        stopped: Callable[[], bool] = lambda: False,
        hurry: Callable[[], bool] | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Prepare a walk.

        Args:
            limits: The limits of a snapshot.
            read: Reads a file.
            searching: Whether to read only what a comparison with another tree needs. Then sizes have no limits, and
                unlistable folders in that tree get permissions.
            stopped: Called periodically: whether to give up.
            hurry: Called before each file: whether to read no more contents. Files that are unread for that reason, or because
                of their size, are not excluded: their status is recorded (`file.is_kept`).
            watch: Watches everything that is found.
        """
        self._hurry = hurry
        self._watch = watch
        self.count = 0
        self._bytes = 0
        self._loosened: list[tuple[str, int]] = []
        self._read = read
        self._stopped = stopped
        self._searching = searching
        self._max_depth = limits.max_depth
        # To remove excess files that code created, a search must find them.
        self.max_files = limits.max_files * (10 if searching else 1)
        self._max_bytes, self._max_file = limits.max_total_bytes, limits.max_file_bytes
        if searching:
            self._max_bytes = sys.maxsize
        self._ignored = Ignored(limits.ignore, limits.makeable)
        self._device = -1
        self._began = 0

    def whole(self, top: int, known: Folder | None, wanted: Folder | None = None, dirt: Dirt | None = None) -> Folder:
        """Read a workspace.

        Args:
            top: The open workspace.
            known: The last known state.
            wanted: The state to compare with, in a search.
            dirt: The parts that may have changed since `known`; None for all.

        Returns:
            The content; `known` itself if nothing changed.

        Raises:
            StoppedError: `stopped` said so.
            LostError: Something cannot be watched.
            SnapshotError: A file was read, but cannot be stored.
        """
        self._began = time.time_ns()
        self._device = os.fstat(top).st_dev
        if known is None or dirt is None:
            return self._folder(top, "", 0, known, wanted)
        self.count, self._bytes = known.totals.entries, known.totals.bytes
        return self._changed_folder(top, "", 0, known, dirt)

    @property
    def is_cut_off(self) -> bool:
        """Whether there may be unexamined entries."""
        return self.count >= self.max_files

    @property
    def loosened(self) -> bool:
        """Whether the walk changed permissions of folders."""
        return bool(self._loosened)

    def tighten(self, top: int, done: Container[str] = ()) -> None:
        """Restore the permissions of folders that were opened for the search, except of some that have others now."""
        while self._loosened:
            path, mode = self._loosened.pop()
            if path in done:
                continue
            with contextlib.suppress(OSError), open_parent(top, path) as (parent, name):
                set_mode(name, parent, mode)

    # -- folders -------------------------------------------------------------------------------------------------------

    def _folder(self, fd: int, path: str, depth: int, known: Folder | None, wanted: Folder | None) -> Folder:
        """Read everything in a folder."""
        before = known.entries.getter if known else _nothing
        found: dict[str, Entry] = {}
        folders: list[str] = []
        complete = True
        if self._stopped():
            raise StoppedError
        watch = self._watch
        if watch is not None:
            watch.folder(fd, path)
        ignores, ignored = self._ignored.anywhere, self._ignored.in_folder(path)
        with os.scandir(fd) as entries:
            for entry in entries:
                if self.count >= self.max_files:
                    complete = False
                    break
                self.count += 1
                name = entry.name
                if depth == 0 and name.startswith(OURS):
                    continue  # removed since it was listed
                if ignores(name) or name in ignored:
                    found[name] = self._named(fd, path, name)
                    continue
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                except PermissionError:
                    found[name] = self._unread(path, name)
                    continue
                old = before(name)
                if type(old) is File and self._is_known(old, info) and (watch is None or watch.holds(_join(path, name))):
                    self._bytes += info.st_size
                    found[name] = old
                elif info.st_mode & 0o170000 == stat.S_IFDIR:  # inlined S_IFMT: this runs for every file
                    folders.append(name)
                else:
                    found[name] = self._other(fd, path, name, info, old, wanted)
        for name in folders:
            old, want = before(name), wanted.entries.get(name) if wanted else None
            found[name] = self._subfolder(
                fd, path, name, depth + 1, old if isinstance(old, Folder) else None, want if isinstance(want, Folder) else None
            )
        own = _own(fd, depth)
        if known and (known.mode, known.owner, known.status, known.complete) == (*own, complete) and _is_reused(found, known):
            return known
        mode, owner, status = own
        return Folder(mode, owner, Entries(found), complete, total(found.values(), complete=complete), status)

    def _changed_folder(self, fd: int, path: str, depth: int, known: Folder, dirt: Dirt) -> Folder:
        """Read the parts of a folder that may have changed."""
        changes: dict[str, Entry | None] = {}
        gone: list[Entry] = []
        if self._stopped():
            raise StoppedError
        for name, inner in dirt.items():
            if depth == 0 and name.startswith(OURS):
                continue
            old = known.entries.get(name)
            new = self._changed(fd, path, name, depth, old, inner)
            if new is not old:
                changes[name] = new
                gone += [] if old is None else [old]
        own = mode, owner, status = _own(fd, depth)
        if not changes:
            same = (known.mode, known.owner, known.status) == own
            return known if same else known._replace(mode=mode, owner=owner, status=status)
        totals = known.totals.minus(total(gone)).plus(total(new for new in changes.values() if new is not None))
        return Folder(mode, owner, known.entries.changed(changes), known.complete, totals, status)

    def _changed(self, fd: int, path: str, name: str, depth: int, old: Entry | None, dirt: Dirt | None) -> Entry | None:
        """Return the current entry of a name, if it exists."""
        closed = False
        try:
            info = status(name, fd)
        except PermissionError:
            info, closed = None, True
        folder = info is not None and stat.S_ISDIR(info.st_mode)
        if folder and isinstance(old, Folder) and dirt is not None:
            new = self._subfolder(fd, path, name, depth + 1, old, None, dirt)
            if not isinstance(new, Folder):
                self._unwatch(path, name, old)
            return new
        if old is not None:
            self.count -= total([old]).entries
            self._bytes -= total([old]).bytes
            if dirt is None or info is None or type(old) is not File:
                self._unwatch(path, name, old)
        if info is None and not closed:
            return None
        if self.count >= self.max_files:
            return _CROWDED
        self.count += 1
        if info is None:
            return self._unread(path, name)
        if name in self._ignored.in_folder(path) or self._ignored.anywhere(name):
            return self._named(fd, path, name)
        if folder:
            return self._subfolder(fd, path, name, depth + 1, old if isinstance(old, Folder) else None, None)
        return self._other(fd, path, name, info, old, None)

    def _subfolder(
        self,
        fd: int,
        above: str,
        name: str,
        depth: int,
        known: Folder | None,
        wanted: Folder | None,
        dirt: Dirt | None = None,
    ) -> Entry:
        if depth > self._max_depth:
            return _DEEP
        if self.count >= self.max_files and dirt is None:
            return _CROWDED
        path = f"{above}/{name}" if above else name
        mode = None
        try:
            if wanted is not None:
                mode = self._loosen(fd, path, name)
            inner = open_folder(name, fd)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            return self._unread(above, name, _CLOSED)
        try:
            info = os.fstat(inner)
            if info.st_dev != self._device:
                return _FOREIGN
            if is_placeholder(info.st_mode):
                return _PLACEHOLDER
            if known is not None and dirt is not None:
                return self._changed_folder(inner, path, depth, known, dirt)
            folder = self._folder(inner, path, depth, known, wanted)
            return folder if mode is None else folder._replace(mode=mode)
        finally:
            os.close(inner)

    def _loosen(self, fd: int, path: str, name: str) -> int | None:
        """Make a folder readable if its mode denies that to this user. Return the original mode."""
        mode = os.lstat(name, dir_fd=fd).st_mode & PERMISSIONS
        if mode & _READABLE == _READABLE:
            return None
        set_mode(name, fd, mode | stat.S_IRWXU)
        self._loosened.append((path, mode))
        return mode

    def _named(self, fd: int, path: str, name: str) -> LeftOut:
        """Return the entry of a name that is ignored."""
        if name.startswith(OURS):
            return _IGNORED
        can_create = self._ignored.in_folder(path).get(name)
        if can_create is None:
            return _NAMED
        with contextlib.suppress(OSError):
            if is_placeholder(os.lstat(name, dir_fd=fd).st_mode):
                return _PLACEHOLDER
        return _NAMED if can_create else _IGNORED

    # -- everything else -----------------------------------------------------------------------------------------------

    def _other(self, fd: int, path: str, name: str, info: os.stat_result, old: Entry | None, wanted: Folder | None) -> Entry:
        """Return the entry for something other than a folder; `old` itself if it is the same."""
        new: Entry
        if stat.S_ISREG(info.st_mode):
            new = self._file(fd, path, name, info, old, wanted)
        elif stat.S_ISLNK(info.st_mode):
            new = self._link(fd, path, name, info)
        else:
            new = _SPECIAL._replace(changed=info.st_ctime_ns)
        return old if old is not None and old == new else new  # so that the folder can be reused

    def _is_known(self, old: File, info: os.stat_result) -> bool:
        """Return whether a file's status is the same as when it was read."""
        return was_seen(old, seen(info)) and is_kept(old) and self._bytes + info.st_size <= self._max_bytes

    def _file(self, fd: int, path: str, name: str, info: os.stat_result, old: Entry | None, wanted: Folder | None) -> Entry:
        if self._searching:
            want = wanted.entries.get(name) if wanted else None
            if isinstance(want, File) and not is_kept(want):
                return pack(info, b"", info.st_size, seen(info))
            if not isinstance(want, File) or facts(want).size != info.st_size:
                return pack(info, b"", info.st_size, UNSEEN)
        room = min(self._max_file, self._max_bytes - self._bytes)
        if self._hurry is not None:
            if self._hurry():
                self._doubt(path, name)
                if isinstance(old, File) and self._is_known(old, info):
                    return self._kept(old)
                return pack(info, b"", info.st_size, seen(info))
            if info.st_size > room and self._watch is None:
                return pack(info, b"", info.st_size, seen(info))
        elif info.st_size > room:
            return _LARGE if info.st_size > self._max_file else _FULL
        try:
            source = open_file(name, fd)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            return self._unread(path, name)
        try:
            return self._opened(source, path, name, old, room)
        except TooLargeError:
            return _LARGE if self._hurry is None else pack(info, b"", info.st_size, UNSEEN)
        except SnapshotError:
            raise
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            return self._unread(path, name)
        finally:
            os.close(source)

    def _opened(self, source: int, path: str, name: str, old: Entry | None, room: int) -> Entry:
        if self._stopped():
            raise StoppedError
        info = os.fstat(source)
        if not stat.S_ISREG(info.st_mode) or info.st_dev != self._device:
            return self._unread(path, name, _SPECIAL)
        may_change = False
        if self._watch is not None:
            may_change = self._watch.file(source, _join(path, name))
            info = os.fstat(source)
            if not may_change and isinstance(old, File) and self._is_known(old, info):
                return self._kept(old)
            if self._hurry is not None and info.st_size > room:
                return pack(info, b"", info.st_size, UNSEEN if may_change else seen(info))
        digest, size = self._read(source, room)
        if may_change and isinstance(old, File) and digest != kept_as(old) and _looks_like(old, info):
            with contextlib.suppress(OSError):
                os.fchown(source, -1, -1)  # it was changed through a mapping: make its times show that
            info = os.fstat(source)
        # A file that changes during the read, or may change within the same clock tick, is read again next time.
        settled = seen(info) == seen(os.fstat(source)) and _is_settled(info, self._began)
        if not settled:
            self._doubt(path, name)
        self._bytes += size
        return pack(info, digest, size, doubted(info) if may_change else seen(info) if settled else unsettled(info))

    def _kept(self, old: File) -> File:
        self._bytes += facts(old).size
        return old

    def _link(self, fd: int, path: str, name: str, info: os.stat_result) -> Entry:
        if info.st_nlink > 1:
            self._doubt(path, name)
        try:
            return Link(os.readlink(name, dir_fd=fd), _owner(info), seen(info))
        except OSError:
            return self._unread(path, name)

    def _unread(self, path: str, name: str, entry: LeftOut = _UNREAD) -> LeftOut:
        self._doubt(path, name)
        return entry

    def _unwatch(self, path: str, name: str, entry: Entry) -> None:
        if self._watch is not None:
            self._watch.gone(_join(path, name), entry)

    def _doubt(self, path: str, name: str) -> None:
        """Mark a path to be examined next time, whether or not a change is reported."""
        if self._watch is not None:
            self._watch.doubt(_join(path, name))


def _nothing(_: str) -> None:
    """Return None: nothing is known."""


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _is_reused(found: dict[str, Entry], known: Folder) -> bool:
    """Return whether everything in a folder was reused, by identity, so that the folder can be reused too."""
    before = known.entries.getter
    return len(known.entries) == len(found) and all(before(name) is entry for name, entry in found.items())


def _looks_like(old: File, info: os.stat_result) -> bool:
    """Return whether a file's status is the same as when it was read, reliable or not."""
    return is_kept(old) and (was_seen(old, seen(info)) or was_seen(old, doubted(info)))


def _is_settled(info: os.stat_result, began: int) -> bool:
    """Return whether a later change would show. Code can set a file's mtime, but not its ctime."""
    tick = _TICK if info.st_ctime_ns % 1_000_000 else _COARSE_TICK
    return info.st_ctime_ns < began - tick


def _own(fd: int, depth: int) -> tuple[int, Owner, bytes]:
    """Return the mode, owner and status of an open folder. The workspace itself has no status."""
    info = os.fstat(fd)
    return info.st_mode & PERMISSIONS, _owner(info), seen(info) if depth else UNSEEN


def _owner(info: os.stat_result) -> Owner:
    return info.st_uid, info.st_gid
