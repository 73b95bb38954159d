"""Opens files and folders in a workspace, one path component at a time, without following links.

Code in a session changes its workspace meanwhile, so a check of a path proves nothing. All checks use open descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cellblock.common.open_flags import ENTER, LIST, NAME, READ, SAFE, held
from cellblock.host.snapshots.file import PERMISSIONS

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | SAFE

_LIBC = ctypes.CDLL(None, use_errno=True)
_RENAME_NOREPLACE = 1  # linux/fs.h
_NOT_KNOWN = frozenset((errno.ENOSYS, errno.EINVAL, errno.EPERM))
"""Errors of systems and file systems without renameat2(2), and of containers that do not allow it."""

CHANGED = frozenset((errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EEXIST, errno.ENOTEMPTY))
"""Errors from something that was swapped since it was seen."""


def open_folder(name: str, directory: int) -> int:
    """Open a folder to list it."""
    return os.open(name, LIST, dir_fd=directory)


def enter_folder(name: str, directory: int) -> int:
    """Open a folder to access its entries, which needs no permission to list it."""
    return os.open(name, ENTER, dir_fd=directory)


def open_file(name: str, directory: int) -> int:
    """Open a file of any kind for reading. Check the kind before reading."""
    return os.open(name, READ, dir_fd=directory)


def open_closed_file(name: str, directory: int) -> int:
    """Open a file for reading that we own, regardless of its mode, which is the same afterwards."""
    try:
        return open_file(name, directory)
    except PermissionError:
        pass
    with held(os.open(name, NAME, dir_fd=directory)) as closed:
        mode = os.fstat(closed).st_mode
        if not stat.S_ISREG(mode):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        path = f"/proc/self/fd/{closed}"  # refers to this file only
        os.chmod(path, stat.S_IMODE(mode) | stat.S_IRUSR)
        try:
            return os.open(path, READ & ~os.O_NOFOLLOW)
        finally:
            os.chmod(path, stat.S_IMODE(mode))


def create_file(name: str, directory: int) -> int:
    """Create a file that must not exist."""
    return os.open(name, _CREATE, 0o600, dir_fd=directory)


def is_node(mode: int) -> bool:
    """Return whether a mode means a FIFO or a named socket."""
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def make_node(name: str, directory: int, mode: int) -> None:
    """Create a FIFO, or a named socket without a listener."""
    os.mknod(name, stat.S_IFMT(mode) | stat.S_IRUSR | stat.S_IWUSR, dir_fd=directory)
    with held(os.open(name, NAME, dir_fd=directory)) as node:
        os.chmod(f"/proc/self/fd/{node}", mode & PERMISSIONS)  # mknod masks the mode


@contextmanager
def open_parent(top: int, path: str) -> Iterator[tuple[int, str]]:
    """Open the parent folder of a path that starts in another folder, for the duration of the context.

    Yields:
        The folder, and the last path component.
    """
    *folders, name = path.split("/")
    directory = _descend(top, folders)
    try:
        yield directory, name
    finally:
        if directory != top:
            os.close(directory)


def _descend(top: int, folders: Sequence[str]) -> int:
    here = top
    try:
        for name in folders:
            here, above = enter_folder(name, here), here
            if above != top:
                os.close(above)
    except BaseException:  # includes interrupts: nothing else closes it
        if here != top:
            os.close(here)
        raise
    return here


@contextmanager
def opened(top: int, path: str, open_it: Callable[[str, int], int] = open_folder) -> Iterator[int]:
    """Open a folder, or something else, at a path for the duration of the context."""
    with open_parent(top, path) as (parent, name):
        found = open_it(name, parent)
    with held(found):
        yield found


@contextmanager
def made_folders(top: int, path: Sequence[str], mode: int = 0o700) -> Iterator[int]:
    """Open the folder at a path for the duration of the context, and create what is missing of the path."""
    here = os.dup(top)
    try:
        for part in path:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, mode, dir_fd=here)
            inner = open_folder(part, here)
            os.close(here)
            here = inner
        yield here
    finally:
        os.close(here)


def status(name: str, directory: int) -> os.stat_result | None:
    """Return the status of a name, or None if it does not exist."""
    try:
        return os.lstat(name, dir_fd=directory)
    except FileNotFoundError:
        return None


def rename_to_free_name(directory: int, name: str, parent: int, to: str) -> None:
    """Move something from an open folder to a free name in another.

    Raises:
        FileExistsError: The name is taken.
        OSError: It cannot be moved.
    """
    code = _renameat2(directory, os.fsencode(name), parent, os.fsencode(to))
    if code in _NOT_KNOWN:  # without the flag, a check first is the best possible
        if status(to, parent) is None:
            os.rename(name, to, src_dir_fd=directory, dst_dir_fd=parent)
            return
        code = errno.EEXIST
    if code:
        raise OSError(code, os.strerror(code), name, None, to)


def _renameat2(*arguments: int | bytes) -> int:
    """Call renameat2, and return 0 or the error number."""
    call = getattr(_LIBC, "renameat2", None)
    if call is None:
        return errno.ENOSYS
    return 0 if call(*arguments, _RENAME_NOREPLACE) == 0 else ctypes.get_errno()


def set_mode(name: str, directory: int, mode: int) -> None:
    """Set a folder's permissions. Its other mode bits are unchanged."""
    with held(enter_folder(name, directory)) as folder:
        other = stat.S_IMODE(os.fstat(folder).st_mode) & ~PERMISSIONS
        if hasattr(os, "O_PATH"):
            os.chmod(f"/proc/self/fd/{folder}", other | mode)  # this path refers to the open folder only
        else:
            os.fchmod(folder, other | mode)
