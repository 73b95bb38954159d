"""Checks, links and removes the files of unpacked wheels. No link is followed, because sandboxes wrote these files."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_DEPTH = 64
_CANNOT_LINK = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOTSUP)


@contextlib.contextmanager
def opened(path: str, parent: int | None = None) -> Iterator[int]:
    """Open a directory, which must not be a link."""
    descriptor = os.open(path, _DIRECTORY, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def check_tree(
    directory: int, most_bytes: int, most_files: int, accept: Callable[[str], bool] = lambda _: True, prefix: str = ""
) -> tuple[int, int]:
    """Check what a sandbox has written. Return the size in bytes and the number of files and directories.

    Args:
        directory: Its descriptor.
        most_bytes: Maximum size.
        most_files: Maximum number of files and directories.
        accept: Returns whether a file of this relative path is expected.
        prefix: The directory's relative path, ending with a slash.

    Raises:
        ValueError: There is anything but plain files and directories, or too much.
    """
    size = count = 0
    if prefix.count("/") > _MAX_DEPTH:
        raise ValueError("its directories are nested too deeply")
    with os.scandir(directory) as entries:
        found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
    for name, status in found:
        path = f"{prefix}{name}"
        if stat.S_ISDIR(status.st_mode):
            with opened(name, directory) as below:
                inside, files = check_tree(below, most_bytes - size, most_files - count, accept, f"{path}/")
                size, count = size + inside, count + files
                os.fchmod(below, 0o755)
        elif not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_mode & 0o7000 or not accept(path):
            raise ValueError(f"its file {path!r} is not expected")
        else:
            size += status.st_size
        count += 1
        if size > most_bytes or count > most_files:
            raise ValueError(f"it has more than {most_bytes >> 20:,} MiB of packages, or {most_files:,} files")
    return size, count


def link_tree(source: int, target: int, *, copy: bool = False) -> None:
    """Link all files of a directory into another one. Files that exist there stay.

    Args:
        source: The directory's descriptor.
        target: The other directory's descriptor.
        copy: Copies the files, because the other directory's readers could change the originals.

    Raises:
        OSError: The disk is full, for example.
    """
    with os.scandir(source) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        with contextlib.suppress(FileExistsError):
            if is_directory:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=target)
                with contextlib.suppress(NotADirectoryError), opened(name, source) as ours, opened(name, target) as theirs:
                    link_tree(ours, theirs, copy=copy)
            elif copy or not _link(name, source, target):
                _copy(name, source, target)


def _link(name: str, source: int, target: int) -> bool:
    try:
        os.link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except OSError as error:
        if error.errno in _CANNOT_LINK:
            return False
        raise
    return True


def _copy(name: str, source: int, target: int) -> None:
    read = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
    with open(read, "rb") as ours:
        status = os.fstat(read)
        write = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=target)
        with open(write, "wb") as theirs:
            shutil.copyfileobj(ours, theirs)
            os.fchmod(write, status.st_mode & 0o777)
            os.utime(write, ns=(status.st_mtime_ns, status.st_mtime_ns))


def unlink(path: str, directory: int) -> None:
    """Remove a file by its relative path if it is there, and directories that are empty then."""
    top, slash, rest = path.partition("/")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        if not slash:
            os.unlink(top, dir_fd=directory)
            return
        with opened(top, directory) as below:
            unlink(rest, below)
        with contextlib.suppress(OSError):  # it has other files
            os.rmdir(top, dir_fd=directory)
