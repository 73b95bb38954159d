"""Tracks by inotify what may have changed in a workspace since it was last examined.

`has_writer` and `write_out` cover changes that inotify does not report.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import os
import select
import signal
import struct
import termios
import threading
from collections.abc import Iterator
from typing import TypeAlias

from cellblock.host.snapshots.entries import Entry, Folder

MODIFY, ATTRIB, OPEN, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x4, 0x20, 0x40, 0x80, 0x100, 0x200
OVERFLOW = 0x4000
ONLYDIR, ISDIR, ONESHOT = 0x0100_0000, 0x4000_0000, 0x8000_0000

_EVENT = struct.Struct("=iIII")
_BUFFER = 2**18
_MOST_READ = 2**23
"""Maximum bytes of events to read at once. The queue is shorter, unless events are added meanwhile."""

_TMPFS = 0x0102_1994
_UNIQUE = frozenset((0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, _TMPFS))
"""File systems where every change goes through this system and the watched inode: ext2 to ext4, XFS, Btrfs, tmpfs and F2FS. A
network drive also changes elsewhere; an overlay opens memory-mapped files once more, on the layer below."""

_WRITE_AND_WAIT = 7

_TOO_MANY = "there are too many files to watch"

_GET_FLAGS = 0x8008_6601
_CASEFOLD = 0x4000_0000

Dirt: TypeAlias = "dict[str, Dirt | None]"
"""Names that may have changed in a folder, each with what may have changed below it; None: everything."""

_FILE = OPEN | MODIFY | ATTRIB | ONESHOT
_FEW = 16 * 1024
"""Bytes of events to read at once when only their existence matters."""
_FOLDER = CREATE | DELETE | MOVED_FROM | MOVED_TO | ATTRIB | ONLYDIR


class LostError(Exception):
    """Changes cannot be watched, or an event was lost. The message says why."""


class UnwatchableError(LostError):
    """This path can never be watched."""


class Inotify:
    """A non-recursive watch of files and folders.

    Attributes:
        most: Maximum number of watches to use.
    """

    _lock = threading.Lock()
    _open = 0
    """The number of instances in this process."""

    def __init__(self) -> None:
        """Start without watches.

        Raises:
            LostError: There are too many instances, or this system has no inotify.
        """
        self._fd = -1
        # Leave some watches for other programs of this user.
        self.most = _limit("max_user_watches") // 4
        with self._lock:
            if Inotify._open >= _limit("max_user_instances") // 2:
                raise LostError("too many sessions watch files")
            Inotify._open += 1
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd < 0:
                raise LostError(f"inotify_init1: {os.strerror(ctypes.get_errno())}")
        except BaseException as error:  # includes interrupts: the instance is already counted
            self.close()
            if isinstance(error, AttributeError):
                raise UnwatchableError("this system has no inotify") from error
            raise

    def add(self, opened: int, mask: int) -> int:
        """Watch an open file or folder under all of its names. Return the number of the watch.

        Raises:
            LostError: There are too many watches.
            OSError: It cannot be watched.
        """
        number: int = self._libc.inotify_add_watch(self._fd, b"/proc/self/fd/%d" % opened, ctypes.c_uint32(mask))
        if number < 0:
            code = ctypes.get_errno()
            if code in (errno.ENOSPC, errno.ENOMEM):
                raise LostError(f"{_TOO_MANY} (fs.inotify.max_user_watches)")
            raise OSError(code, f"inotify_add_watch: {os.strerror(code)}")
        return number

    @classmethod
    def after_fork(cls) -> None:
        """Replace the lock in a child process: another thread may have held the parent's lock."""
        cls._lock = threading.Lock()

    def remove(self, number: int) -> None:
        """Remove a watch. Linux may have removed it already."""
        self._libc.inotify_rm_watch(self._fd, number)

    def read(self) -> Iterator[tuple[int, int, str]]:
        """Yield the events since the last call.

        Yields:
            The number of the watch, the kind, and the name in the watched folder; empty for the watched object itself.

        Raises:
            LostError: The queue overflowed and events were lost.
        """
        read = 0
        while read < _MOST_READ:
            try:
                data = os.read(self._fd, _BUFFER)
            except BlockingIOError:
                return
            read += len(data)
            at = 0
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size
                if mask & OVERFLOW:
                    raise LostError("the system's queue of changes overflowed (fs.inotify.max_queued_events)")
                yield number, mask, os.fsdecode(data[at : at + length].rstrip(b"\0")) if length else ""
                at += length
        raise LostError("changes arrive faster than they can be read")

    @property
    def unread(self) -> int:
        """The number of bytes that `read` would read."""
        count = array.array("i", [0])
        fcntl.ioctl(self._fd, termios.FIONREAD, count, True)
        return count[0]

    def close(self) -> None:
        """Remove all watches. Idempotent."""
        with self._lock:
            fd, self._fd = self._fd, -2
            if fd != -2:
                Inotify._open -= 1
        if fd >= 0:
            os.close(fd)


def check_place(top: int) -> None:
    """Check that all changes in a folder can be watched.

    Raises:
        UnwatchableError: Some changes cannot.
    """
    kind = _kind(top)
    if kind not in _UNIQUE:
        raise UnwatchableError(f"it is on a file system that does not report all changes ({kind:#x})")


def _kind(opened: int) -> int:
    """Return the number of a file system's type; 0 if unknown."""
    buffer = ctypes.create_string_buffer(256)
    if ctypes.CDLL(None, use_errno=True).fstatfs(opened, buffer) != 0:
        return 0
    return ctypes.c_ulong.from_buffer(buffer).value


def check_folder(opened: int) -> None:
    """Check that a folder is case-sensitive: otherwise events may have other names than the folder's entries.

    Raises:
        UnwatchableError: The folder is not case-sensitive.
    """
    flags = bytearray(8)
    with contextlib.suppress(OSError):
        fcntl.ioctl(opened, _GET_FLAGS, flags)
    if int.from_bytes(flags[:4], "little") & _CASEFOLD:
        raise UnwatchableError("case does not matter in a folder")


def has_writer(opened: int) -> bool | None:
    """Return whether any process has a file open for writing or mapped, so that it may change without an event.

    Linux grants no lease in that case.

    Args:
        opened: The file, open for reading only.

    Returns:
        None if unknown, for example because the file belongs to another user.
    """
    try:
        # A process that opens it for writing meanwhile waits for the end of the lease. This signal tells us, and has no
        # effect.
        fcntl.fcntl(opened, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    return False


def write_out(opened: int) -> bool:
    """Write a file's dirty pages to the disk, so that later writes through a mapping change the file's times.

    Before, only the first write to each page does.

    Returns:
        Whether that now holds. It does not without a disk, as on tmpfs.
    """
    if _kind(opened) in (0, _TMPFS):
        return False
    none = ctypes.c_int64(0)
    done: int = ctypes.CDLL(None, use_errno=True).sync_file_range(opened, none, none, _WRITE_AND_WAIT)
    return done == 0


def _limit(name: str) -> int:
    try:
        with open(f"/proc/sys/fs/inotify/{name}", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError) as error:
        raise UnwatchableError(f"the system does not report its watches: {error}") from error


class Watch:
    """A watch of each file and folder that an examination of a workspace finds.

    Files are watched themselves, not only their folders: a file can also be written under another name, in an unwatched
    folder. Some changes cause no event. Files that can change this way are in doubt, and are examined each time:

    - a file that is open for writing: writes through a mapping cause no event. A later open does.
    - a file with several names, and an unreadable file.
    - a file that changed so recently that its next change may have the same time.

    An examination has these steps: `begin`; `folder`, `file` and `doubt` for what is found, and `gone` for what is missing or
    was replaced; `end`. If it is given up, everything due stays due. No change is missed, because everything is watched before
    it is examined.
    """

    def __init__(self, top: int, expected: int) -> None:
        """Start without watches of an open workspace. `expected` is the known number of files and folders.

        Raises:
            LostError: The workspace cannot be watched.
        """
        check_place(top)
        self._inotify = Inotify()
        self._paths: dict[int, str] = {}
        """Watched paths, by the number of the watch."""
        self._numbers: dict[str, int] = {}
        self._due: dict[str, bool] = {}
        """Paths that are due for examination; True: with everything below."""
        self._doubts: set[str] = set()
        self._new: set[str] = set()
        """Paths that are watched since the last examination began."""
        self._complete = False
        """Whether everything is watched that existed at the end of the last examination."""
        try:
            self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._inotify.close()
            raise LostError(f"what is mounted cannot be watched: {error}") from error
        if expected > self._inotify.most:
            self.close()
            raise LostError(_TOO_MANY)
        self._poll = select.poll()
        self._poll.register(self._mounts, select.POLLPRI)

    def begin(self) -> Dirt | None:
        """Begin an examination. Return what may have changed since the last one; None for anything.

        Raises:
            LostError: Events were lost.
        """
        for number, mask, name in self._inotify.read():
            self._take_note(number, mask, name)
        if self._poll.poll(0):
            self._complete = False
        self._due.update(dict.fromkeys(self._doubts, False))
        self._doubts.clear()
        if not self._complete:
            return None
        for path in self._new:  # the last examination was given up: all this is due, and may no longer exist
            self._drop(path)
        self._new.clear()
        dirt: Dirt = {}
        for path, whole in self._due.items():
            _mark(dirt, path, whole=whole)
        return dirt

    def touched(self) -> bool:
        """Return, between two examinations, whether a change was reported since the last one."""
        if self._inotify.unread > _FEW:
            return True
        try:
            for number, mask, name in self._inotify.read():
                self._take_note(number, mask, name)
        except LostError:
            self._complete = False
        return bool(self._due) or not self._complete

    def end(self, root: Folder) -> None:
        """End an examination of everything that `begin` returned."""
        if not self._complete:
            found = {*_paths(root, "")}
            for path in [path for path in self._numbers if path not in found]:
                self._drop(path)
        self._due.clear()
        self._new.clear()
        self._complete = True

    def forget(self) -> None:
        """Invalidate the watches, because another examination ran without them."""
        self._complete = False

    def holds(self, path: str) -> bool:
        """Return whether a file is unchanged since it was last examined."""
        return path in self._numbers and path not in self._due

    def folder(self, opened: int, path: str) -> None:
        """Watch a folder, before it is listed.

        Raises:
            LostError: The folder cannot be watched.
        """
        check_folder(opened)
        try:
            self._add(opened, path, _FOLDER)
        except OSError as error:
            raise LostError(f"a folder cannot be watched: {error}") from error

    def file(self, opened: int, path: str) -> bool:
        """Watch a file, open for reading only, before it is examined. A file that can change without an event is in doubt.

        Returns:
            Whether it may be changing without a change of its times.

        Raises:
            LostError: There are too many watches.
        """
        try:
            # Opening it ended its previous watch.
            self._add(opened, path, _FILE)
        except OSError:
            self.doubt(path)
            return False
        # Now, not earlier: any later open causes an event.
        writer = has_writer(opened)
        if writer is not False or os.fstat(opened).st_nlink > 1:
            self.doubt(path)
        return writer is True and not write_out(opened)

    def doubt(self, path: str) -> None:
        """Mark a path to be examined next time in any case."""
        self._doubts.add(path)

    def gone(self, path: str, entry: Entry) -> None:
        """Stop watching a path and everything in it."""
        self._drop(path)
        if isinstance(entry, Folder):
            for inner in _paths(entry, path):
                self._drop(inner)

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._inotify.close()
        if self._mounts >= 0:
            os.close(self._mounts)
            self._mounts = -1

    def _take_note(self, number: int, mask: int, name: str) -> None:
        path = self._paths.get(number)
        if path is None:
            return  # of an earlier watch
        if not name:
            self._due.setdefault(path, False)
            return
        path = f"{path}/{name}" if path else name
        # Changes of a folder itself are also reported by its own watch.
        if not (mask & ATTRIB and mask & ISDIR and path in self._numbers):
            self._due[path] = True

    def _add(self, opened: int, path: str, mask: int) -> None:
        if len(self._numbers) >= self._inotify.most:
            raise LostError(_TOO_MANY)
        number = self._inotify.add(opened, mask)
        if self._numbers.get(path) != number:
            self._drop(path)
        self._numbers[path] = number
        self._paths[number] = path
        self._new.add(path)

    def _drop(self, path: str) -> None:
        number = self._numbers.pop(path, None)
        if number is not None and self._paths.get(number) == path:  # otherwise it was moved, and is watched at its new path
            del self._paths[number]
            self._inotify.remove(number)


def _paths(folder: Folder, path: str) -> Iterator[str]:
    """Yield the path of a folder, and the paths of everything in it."""
    yield path
    for name, entry in folder.entries.items():
        where = f"{path}/{name}" if path else name
        if isinstance(entry, Folder):
            yield from _paths(entry, where)
        else:
            yield where


def _mark(dirt: Dirt, path: str, *, whole: bool) -> None:
    if not path:
        return  # the workspace itself is examined whenever anything is due
    *folders, name = path.split("/")
    for folder in folders:
        inner = dirt.setdefault(folder, {})
        if inner is None:
            return
        dirt = inner
    if whole:
        dirt[name] = None
    else:
        dirt.setdefault(name, {})


os.register_at_fork(after_in_child=Inotify.after_fork)
