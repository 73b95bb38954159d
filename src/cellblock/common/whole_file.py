"""Atomic file writes that survive a power failure: to a temporary name in the same directory, then renamed."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from contextlib import suppress
from typing import IO

from cellblock.common.new_mode import create

_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems that cannot sync a file, or a directory: nothing more can be done there."""


def sync(descriptor: int) -> None:
    """Wait until an open file, or the names in an open directory, are on the disk.

    Raises:
        OSError: They cannot be written.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Wait until the names in a directory are on the disk. Raises as `sync`."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(directory)
    finally:
        os.close(directory)


def sync_file(path: str | os.PathLike[str]) -> None:
    """Wait until a file is on the disk. Raises as `sync`."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(file)
    finally:
        os.close(file)


def claimed(descriptor: int) -> int:
    """Lock a temporary file while this descriptor is open, so that other processes do not remove it. Return the descriptor."""
    with suppress(OSError):  # a file system without locks: then nothing removes it, either
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def open_unnamed(directory: int, flags: int, mode: int) -> int | None:
    """Create an unnamed file in an open directory. It disappears if this process is killed before `give_name`.

    Args:
        directory: The directory.
        flags: As for `os.open`.
        mode: As for `os.open`.

    Returns:
        Its descriptor; None if the file system does not support it.

    Raises:
        OSError: It cannot be created.
    """
    if not hasattr(os, "O_TMPFILE") or not os.path.exists("/proc/self/fd"):
        return None
    try:
        return create(".", flags | os.O_TMPFILE | os.O_CLOEXEC, mode, dir_fd=directory)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EISDIR, errno.EINVAL):
            raise
        return None


def give_name(file: int, name: str, directory: int) -> None:
    """Give an unnamed file its first name.

    Raises:
        OSError: The file cannot have that name.
    """
    os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=directory, follow_symlinks=True)


class WholeFile:
    """A new file with a temporary name until it is complete. `OSError`s are passed on.

    As a context manager, it yields the file to write to, and completes it unless an exception is raised.
    """

    def __init__(self, path: str | os.PathLike[str], mode: int = 0o600) -> None:
        """Set the path. `open` creates the file.

        Args:
            path: Its final path. An existing file is replaced.
            mode: Its permissions, like the mode of `os.open`.
        """
        self._parent, self._final = os.path.split(os.path.abspath(path))
        self._mode = mode
        self._name = ""
        self._directory: int | None = None
        self._file: IO[bytes] | None = None

    def open(self) -> IO[bytes]:
        """Create the file, and return it for writing and reading."""
        name = ""
        directory = os.open(self._parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if (opened := open_unnamed(directory, os.O_RDWR, self._mode)) is None:
                name = _temporary()
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                opened = create(name, flags, self._mode, dir_fd=directory)
            self._file = os.fdopen(claimed(opened), "w+b")
        except BaseException:  # includes interrupts: nothing else closes it
            os.close(directory)
            raise
        self._name, self._directory = name, directory
        return self._file

    def finish(self) -> None:
        """Rename the complete file to its final path. On return, it is on the disk."""
        assert self._file is not None
        assert self._directory is not None
        self._file.flush()
        sync(self._file.fileno())  # before the rename: otherwise, the file can be empty after a power failure
        if self._name or not self._is_first():
            os.replace(self._name, self._final, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            self._name = ""
        sync(self._directory)

    def _is_first(self) -> bool:
        """Give the file its final name if that is free, or else a temporary one. A link replaces nothing."""
        assert self._file is not None
        assert self._directory is not None
        try:
            give_name(self._file.fileno(), self._final, self._directory)
        except FileExistsError:
            name = _temporary()
            give_name(self._file.fileno(), name, self._directory)
            self._name = name
            return False
        return True

    def close(self) -> None:
        """Close the file, if it is open. Remove an incomplete one."""
        directory, self._directory = self._directory, None
        if directory is None:
            return
        if self._name:
            with suppress(OSError):
                os.unlink(self._name, dir_fd=directory)
        with suppress(OSError):  # unwritten data of an incomplete file
            if self._file is not None:
                self._file.close()
        os.close(directory)

    def __enter__(self) -> IO[bytes]:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: object) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.close()


def _temporary() -> str:
    return f".cellblock-{secrets.token_hex(8)}"
