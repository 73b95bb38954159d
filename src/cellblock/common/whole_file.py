"""Writes files atomically: to a temporary name in the same directory, then renamed. They survive a power failure."""

from __future__ import annotations

import errno
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


class WholeFile:
    """A new file with a temporary name until it is complete. `OSError`s are passed on.

    It can be used in a ``with`` block, which yields the file to write to and completes it unless something is raised.
    """

    def __init__(self, path: str | os.PathLike[str], mode: int = 0o600) -> None:
        """Set the path; `open` creates the file.

        Args:
            path: Its final path. An existing file is replaced.
            mode: Who can read and write it, like the mode of `os.open`.
        """
        self._parent, self._final = os.path.split(os.path.abspath(path))
        self._mode = mode
        self._name = ""
        self._directory: int | None = None
        self._file: IO[bytes] | None = None

    def open(self) -> IO[bytes]:
        """Create it, and return it for writing and reading."""
        name = f".cellblock-{secrets.token_hex(8)}"
        directory = os.open(self._parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.fdopen(create(name, flags, self._mode, dir_fd=directory), "w+b")
        except BaseException:  # also an interrupt: no one else closes it
            os.close(directory)
            raise
        self._name, self._directory = name, directory
        return self._file

    def finish(self) -> None:
        """Rename the complete file to its final path. When this returns, it is on the disk."""
        assert self._file is not None
        assert self._directory is not None
        self._file.flush()
        sync(self._file.fileno())  # before the rename: otherwise, an empty file can have the name after a power failure
        os.replace(self._name, self._final, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._name = ""
        sync(self._directory)

    def close(self) -> None:
        """Close it, if it is open. If it is not complete, it is removed."""
        directory, self._directory = self._directory, None
        if directory is None:
            return
        if self._name:
            with suppress(OSError):
                os.unlink(self._name, dir_fd=directory)
        with suppress(OSError):  # what is left to be written, if it was not complete
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
