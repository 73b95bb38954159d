"""Has the system say what changes: `Inotify`; `has_writer` and `write_out` are for changes that it does not say."""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import struct
import termios
import threading
from collections.abc import Iterator
from typing import NamedTuple

MODIFY, ATTRIB, OPEN, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x4, 0x20, 0x40, 0x80, 0x100, 0x200
OVERFLOW = 0x4000
ONLYDIR, ISDIR, ONESHOT = 0x0100_0000, 0x4000_0000, 0x8000_0000

_EVENT = struct.Struct("=iIII")
_BUFFER = 2**18
_MOST_READ = 2**23
"""Bytes of events that are read at once. The queue has fewer, unless somebody adds to it meanwhile."""

_TMPFS = 0x0102_1994
_UNIQUE = frozenset((0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, _TMPFS))
"""File systems of which every change goes through this system and through the inode that is watched: ext2 to ext4, XFS, Btrfs,
tmpfs and F2FS. A network drive changes elsewhere, too; what an overlay maps into memory, it opens once more below."""

_WRITE_AND_WAIT = 7

TOO_MANY = "there are too many files to watch"

_GET_FLAGS = 0x8008_6601
_CASEFOLD = 0x4000_0000


class LostError(Exception):
    """What changes cannot be watched, or something was missed. The message says why."""


class UnwatchableError(LostError):
    """It will never be possible to watch this place."""


class Event(NamedTuple):
    """Something has happened.

    Attributes:
        number: The number of the watch.
        mask: What has happened.
        name: To what in the folder that is watched; empty: to what is watched itself.
    """

    number: int
    mask: int
    name: str


class Inotify:
    """Watches files and folders, and nothing below them.

    Attributes:
        most: How many it should watch at most.
    """

    _lock = threading.Lock()
    _open = 0
    """How many there are in this process"""

    def __init__(self) -> None:
        """Begin to watch nothing.

        Raises:
            LostError: There are too many already, or this system has nothing like that.
        """
        self._fd = -1
        # Other programs of this user need some, too.
        self.most = _limit("max_user_watches") // 4
        with self._lock:
            if Inotify._open >= _limit("max_user_instances") // 2:
                raise LostError("there are too many sessions whose files are watched")
            Inotify._open += 1
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd < 0:
                raise LostError(f"inotify_init1: {os.strerror(ctypes.get_errno())}")
        except BaseException as error:  # also an interrupt: it is counted
            self.close()
            if isinstance(error, AttributeError):
                raise UnwatchableError("this system has no inotify") from error
            raise

    def add(self, opened: int, mask: int) -> int:
        """Watch what is open, whatever names it has; return the number of the watch.

        Raises:
            LostError: There are too many watches.
            OSError: It cannot be watched.
        """
        number: int = self._libc.inotify_add_watch(self._fd, b"/proc/self/fd/%d" % opened, ctypes.c_uint32(mask))
        if number < 0:
            code = ctypes.get_errno()
            if code in (errno.ENOSPC, errno.ENOMEM):
                raise LostError(f"{TOO_MANY} (fs.inotify.max_user_watches)")
            raise OSError(code, f"inotify_add_watch: {os.strerror(code)}")
        return number

    def remove(self, number: int) -> None:
        """Watch something no longer. The system may have ended that already."""
        self._libc.inotify_rm_watch(self._fd, number)

    def read(self) -> Iterator[Event]:
        """Yield what has happened since the last call.

        Raises:
            LostError: More than the system takes note of.
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
                    raise LostError("more has changed than the system takes note of (fs.inotify.max_queued_events)")
                yield Event(number, mask, os.fsdecode(data[at : at + length].rstrip(b"\0")) if length else "")
                at += length
        raise LostError("changes come faster than they can be read")

    @property
    def unread(self) -> int:
        """How many bytes `read` would read."""
        count = array.array("i", [0])
        fcntl.ioctl(self._fd, termios.FIONREAD, count, True)
        return count[0]

    def close(self) -> None:
        """Watch nothing any more. More than once is fine."""
        with self._lock:
            fd, self._fd = self._fd, -2
            if fd != -2:
                Inotify._open -= 1
        if fd >= 0:
            os.close(fd)


def check_place(top: int) -> None:
    """Check that whatever changes in a folder can be watched.

    Raises:
        UnwatchableError: It cannot.
    """
    kind = _kind(top)
    if kind not in _UNIQUE:
        raise UnwatchableError(f"it is on a file system of which not all changes are seen ({kind:#x})")


def _kind(opened: int) -> int:
    """Return the number of the file system that something is on; 0 if that cannot be known."""
    buffer = ctypes.create_string_buffer(256)
    if ctypes.CDLL(None, use_errno=True).fstatfs(opened, buffer) != 0:
        return 0
    return ctypes.c_ulong.from_buffer(buffer).value


def check_folder(opened: int) -> None:
    """Check that a folder has a name for each file: if case does not matter, events have other names than the folder.

    Raises:
        UnwatchableError: It does not.
    """
    flags = bytearray(8)
    with contextlib.suppress(OSError):
        fcntl.ioctl(opened, _GET_FLAGS, flags)
    if int.from_bytes(flags[:4], "little") & _CASEFOLD:
        raise UnwatchableError("case does not matter in a folder")


def has_writer(opened: int) -> bool | None:
    """Whether anybody has a file open for writing, or mapped into memory: then it may change, and nothing tells.

    The system gives nobody a lease then.

    Args:
        opened: The file, open for reading only.

    Returns:
        None: It cannot be known, since the file belongs to somebody else, for example.
    """
    try:
        # Whoever opens it for writing meanwhile waits for the next line, and we are sent this signal, which does nothing.
        fcntl.fcntl(opened, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    return False


def write_out(opened: int) -> bool:
    """Write what of a file is only in memory to the disk. Afterwards, whoever writes to memory changes its times.

    Until then, only the first write to a page does.

    Args:
        opened: The file.

    Returns:
        Whether that is so now. A file system without a disk, tmpfs, does nothing here.
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
        raise UnwatchableError(f"the system does not say how much it watches: {error}") from error
