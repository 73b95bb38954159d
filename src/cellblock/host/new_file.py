"""A file that a session is written to: it is complete, or it is not there."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import IO

from cellblock.errors import InvalidInputError, StoreError
from cellblock.host.environment import check_directory


class Telling:
    """Turns errors of the system into `StoreError`."""

    def __init__(self, what: str, then: str) -> None:
        """Begin.

        Args:
            what: What has failed if there is one.
            then: What else to say.
        """
        self._what, self._then = what, then

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise StoreError(f"{self._what}: {error.strerror or error}; {self._then}") from error


class NewFile:
    """A file that is written beside the one that it will replace. Only its owner can read it.

    Attributes:
        path: Where it will be.
        size: How many bytes it has, once it is complete.
    """

    file: IO[bytes]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Begin; `open` makes it.

        Args:
            path: Where it will be.

        Raises:
            InvalidInputError: No file can be there.
        """
        self.path = Path(path).expanduser().absolute()
        if not self.path.name or self.path.is_dir():
            raise InvalidInputError(f"{self.path} is a directory: pass the path of a file to write to")
        self.size = 0
        self._name = ""
        self._directory: int | None = None

    def open(self) -> None:
        """Make it, with another name.

        Raises:
            InvalidInputError: It cannot be there.
            StoreError: It cannot be written.
        """
        parent = check_directory("the directory to write to", self.path.parent)
        name = f".cellblock-{secrets.token_hex(8)}"
        with self.telling():
            directory = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                self.file = os.fdopen(os.open(name, flags, 0o600, dir_fd=directory), "w+b")
            except BaseException:  # also an interrupt: nobody else closes it
                os.close(directory)
                raise
        self._name, self._directory = name, directory

    def write(self, data: bytes) -> None:
        """Write to it. Raises as `open`."""
        with self.telling():
            self.file.write(data)

    def finish(self) -> None:
        """Give it its name: it is complete. What had that name before is replaced. Raises as `open`."""
        with self.telling():
            self.file.flush()
            os.fsync(self.file.fileno())
            self.size = os.fstat(self.file.fileno()).st_size
            os.replace(self._name, self.path.name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._name = ""

    def close(self) -> None:
        """Close it, if it is open. If it is not complete, it is removed."""
        directory, self._directory = self._directory, None
        if directory is None:
            return
        if self._name:
            with suppress(OSError):
                os.unlink(self._name, dir_fd=directory)
        with suppress(OSError):  # what is left to be written, if it was not complete
            self.file.close()
        os.close(directory)

    def telling(self) -> Telling:
        """Return what turns errors of the system into `StoreError` that say what was not written."""
        return Telling(f"{self.path} cannot be written", "nothing was changed: what had that name before is as it was")
