"""Opens paths relative to an open directory, confined to it.

The session's code changes its workspace while the host works there, so a check of a *path* proves nothing: a moment later it
may be a link to the host's files. All checks therefore use open descriptors. There are two implementations, with the same
tests:

- `openat2_walk` lets Linux resolve the whole path and refuse links and ``..``;
- `stepwise_walk` opens one component after the other with ``O_NOFOLLOW``, for kernels (and seccomp filters) without it.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from cellblock.common.new_mode import create
from cellblock.common.open_flags import ENTER, LIST, READ, SAFE, held
from cellblock.host.files.failures import over, telling
from cellblock.host.files.info import FileLimits, Parts
from cellblock.walls.sandbox.placeholders import is_placeholder

Walk = Callable[[int, Parts, int], int]
"""Opens a path below an open directory: (directory, path, flags) to a new descriptor."""

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOCTTY | SAFE

_SYS_OPENAT2 = 437  # the same on every architecture that Python 3.11 is packaged for
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_RESOLVE = _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS
_PATH_ROOM = 4000
"""Bytes of a path that one system call takes (PATH_MAX minus a margin)."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _openat2(directory: int, path: bytes, flags: int) -> int:
    if b"\0" in path:
        raise ValueError("embedded null byte")  # C would end the path there, and open another file
    # Without O_NOFOLLOW: with it, the error for a link at the end would be "not a directory" instead of ELOOP.
    how = _OpenHow(flags & ~os.O_NOFOLLOW, 0, _RESOLVE)
    fd = int(_libc().syscall(_SYS_OPENAT2, directory, path, ctypes.byref(how), ctypes.sizeof(how)))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), os.fsdecode(path))
    return fd


def openat2_walk(directory: int, parts: Parts, flags: int) -> int:
    """Open a path in a directory by ``openat2``, with as many components per call as fit into a path."""
    names = [os.fsencode(name) for name in parts]
    here = directory
    try:
        while True:
            count, room = 0, _PATH_ROOM
            while count < len(names) and (count == 0 or len(names[count]) < room):
                room -= len(names[count]) + 1
                count += 1
            path, names = b"/".join(names[:count]) or b".", names[count:]
            if not names:
                return _openat2(here, path, flags)
            here, above = _openat2(here, path, ENTER), here
            if above != directory:
                os.close(above)
    finally:
        if here != directory:
            os.close(here)


def stepwise_walk(directory: int, parts: Parts, flags: int) -> int:
    """Open a path in a directory one component at a time, without following links."""
    if not parts:
        return os.open(".", flags, dir_fd=directory)
    here = directory
    try:
        for name in parts[:-1]:
            here, above = _step(here, name, ENTER), here
            if above != directory:
                os.close(above)
        return _step(here, parts[-1], flags)
    finally:
        if here != directory:
            os.close(here)


def _step(directory: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags, dir_fd=directory)
    except NotADirectoryError:
        # With O_DIRECTORY, the error for a link is "not a directory". Nothing was opened; this only finds the better error.
        if stat.S_ISLNK(os.lstat(name, dir_fd=directory).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None
        raise


@functools.cache
def best_walk() -> Walk:
    """Return ``openat2`` if this system has and permits it, else the stepwise walk."""
    if not sys.platform.startswith("linux"):
        return stepwise_walk
    root = os.open("/", ENTER)
    try:
        os.close(_openat2(root, b".", ENTER))
    except OSError:
        return stepwise_walk  # ENOSYS before Linux 5.6, EPERM under the seccomp filters of older container engines
    else:
        return openat2_walk
    finally:
        os.close(root)


class Tree:
    """An open directory and everything in it, by `Parts`. No operation follows links.

    Methods raise system errors (`OSError`), unless a limit is exceeded.
    """

    def __init__(self, fd: int, walk: Walk, label: str = "") -> None:
        self.fd = fd
        self.walk = walk
        self.label = label

    @classmethod
    def at(cls, path: str, walk: Walk | None = None, label: str = "") -> Self:
        """Open a directory by a path from the *trusted* side. Its links are followed.

        Args:
            path: The directory.
            walk: The walk to use; by default the best one available.
            label: Prefix of its paths in messages.
        """
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), walk or best_walk(), label)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def name(self, parts: Parts) -> str:
        """Return a path for messages."""
        return os.path.join(self.label, *parts) or "."

    def open(self, parts: Parts, flags: int) -> int:
        return self.walk(self.fd, parts, flags)

    def subtree(self, parts: Parts, flags: int = ENTER) -> Tree:
        """Open a folder as another tree."""
        return Tree(self.open(parts, flags), self.walk, os.path.join(self.label, *parts))

    @contextmanager
    def parent(self, parts: Parts) -> Iterator[int]:
        """Open the parent folder of a path for the duration of the context."""
        with held(self.open(parts[:-1], ENTER)) as fd:
            yield fd

    def lstat(self, parts: Parts) -> os.stat_result:
        if not parts:
            return os.fstat(self.fd)
        with self.parent(parts) as fd:
            return os.lstat(parts[-1], dir_fd=fd)

    def open_file(self, parts: Parts) -> tuple[int, os.stat_result]:
        """Open a regular file for reading. Return its descriptor and status.

        Raises:
            OSError: ``ELOOP`` for a link, ``EISDIR`` for a folder, ``ENXIO`` for a FIFO, socket or device.
        """
        with self.parent(parts) as directory:
            name = parts[-1] if parts else "."
            # Checked first, because opening some devices has effects. If it is replaced before the next line, O_NOFOLLOW and
            # O_NONBLOCK still apply, and the open file is checked again.
            check_regular(os.lstat(name, dir_fd=directory))
            fd = self.walk(directory, (name,), READ)
        try:
            info = os.fstat(fd)
            check_regular(info)
        except BaseException:  # of any kind: we own the descriptor until it is returned
            os.close(fd)
            raise
        return fd, info

    def make_directories(self, parts: Parts) -> int:
        """Create a folder and its missing parents. Return an O_PATH descriptor of it."""
        try:
            return self.open(parts, ENTER)
        except FileNotFoundError:
            pass
        here = self.open((), ENTER)
        for name in parts:
            above = here
            try:
                try:
                    os.mkdir(name, dir_fd=above)
                except FileExistsError:
                    pass  # of any kind: the walk opens it only if it is a folder
                here = self.walk(above, (name,), ENTER)
            finally:
                os.close(above)
        return here

    def scan(
        self, parts: Parts, limits: FileLimits, verb: str, *, recursive: bool = True
    ) -> Iterator[tuple[Parts, os.stat_result]]:
        """Yield everything in a folder with its status: each folder's entries by name, then its subfolders' entries.

        Each folder is reached from the top again, with one open descriptor at a time: moves meanwhile cannot lead outside, and
        depth costs no descriptors. Entries that vanish meanwhile are omitted, as are the sandbox's empty placeholder folders.

        Args:
            parts: The folder.
            limits: The maximum number of entries and depth.
            verb: The operation, for the error.
            recursive: Whether to enter subfolders.

        Yields:
            Paths relative to the folder, and their status.
        """
        count = 0
        pending: list[Parts] = [()]
        while pending:
            below = pending.pop()
            folders = []
            for name, info in self._entries(parts + below, below == (), limits, count, verb):
                count += 1
                if is_placeholder(info.st_mode):
                    continue
                yield (*below, name), info
                if recursive and stat.S_ISDIR(info.st_mode):
                    folders.append((*below, name))
            if folders and len(folders[0]) >= limits.max_depth:
                what = "its folders are nested deeper than that"
                raise over(verb, self.name(parts), what, "max_depth", limits.max_depth)
            pending.extend(reversed(folders))

    def _entries(self, parts: Parts, top: bool, limits: FileLimits, count: int, verb: str) -> list[tuple[str, os.stat_result]]:
        """Return a folder's sorted entries; none for a vanished folder, unless it is the top folder."""
        found: list[tuple[str, os.stat_result]] = []
        try:
            fd = self.open(parts, LIST)
        except OSError as error:
            if not top and error.errno in CHANGED:
                return found
            with telling(verb, self.name(parts)):
                raise
        with held(fd), os.scandir(fd) as entries:
            for entry in entries:
                try:
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
                except FileNotFoundError:
                    continue
                if count + len(found) > limits.max_entries:
                    raise over(verb, self.name(parts), "there are more entries", "max_entries", limits.max_entries)
        return sorted(found, key=lambda entry: entry[0])


def create_file(directory: str, name: str) -> int:
    """Create a file in a directory whose links were resolved before. Return it open for writing.

    No component may be a link now: the session's code may have created one since.

    Args:
        directory: An absolute path. Missing folders are created.
        name: The file's name.

    Raises:
        OSError: It cannot be created, or a component is a link or not a directory.
    """
    with Tree.at("/") as root, held(root.make_directories(Path(directory).parts[1:])) as place:
        return create(name, CREATE, 0o666, dir_fd=place)


def remove_file(directory: str, name: str) -> None:
    """Remove a file that `create_file` created, without following links.

    Raises:
        OSError: It cannot be removed, or does not exist.
    """
    with Tree.at("/") as root, root.parent((*Path(directory).parts[1:], name)) as place:
        os.unlink(name, dir_fd=place)


CHANGED = frozenset({errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO})
"""Errors from opening something that was swapped since it was seen."""


def check_regular(info: os.stat_result) -> None:
    """Check that a status is a regular file's.

    Raises:
        OSError: It is not.
    """
    if stat.S_ISREG(info.st_mode):
        return
    kinds = {stat.S_IFLNK: errno.ELOOP, stat.S_IFDIR: errno.EISDIR}
    code = kinds.get(stat.S_IFMT(info.st_mode), errno.ENXIO)
    raise OSError(code, os.strerror(code))
