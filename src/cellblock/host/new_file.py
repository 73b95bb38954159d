"""New files for saved sessions: atomically named files, and unnamed ones."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO

from cellblock.common.whole_file import WholeFile
from cellblock.errors import InvalidInputError, StoreError
from cellblock.host.environment import check_directory
from cellblock.host.files.staging import remove_unclaimed


class Telling:
    """A context manager that converts system errors to `StoreError`."""

    def __init__(self, what: str, then: str) -> None:
        """Store the texts.

        Args:
            what: The failure, as a clause for the error message.
            then: The consequence.
        """
        self._what, self._then = what, then

    def __enter__(self) -> None:
        """Start."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise StoreError(f"{self._what}: {error.strerror or error}; {self._then}") from error


class NewFile:
    """A file that is written next to the file that it will replace. Only its owner can read it.

    Attributes:
        path: Its final path.
        size: Its size in bytes, once complete.
    """

    file: IO[bytes]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Validate the path. `open` creates the file.

        Raises:
            InvalidInputError: The path is a directory.
        """
        self.path = Path(path).expanduser().absolute()
        if not self.path.name or self.path.is_dir():
            raise InvalidInputError(f"{self.path} is a directory: pass the path of a file to write to")
        self.size = 0
        self._whole = WholeFile(self.path)

    def open(self) -> None:
        """Create the file without a name, or under a temporary one. Remove what killed processes left beside it.

        Raises:
            InvalidInputError: The directory cannot contain it.
            StoreError: It cannot be written.
        """
        check_directory("the directory to write to", self.path.parent)
        remove_unclaimed(str(self.path.parent))
        with self.telling():
            self.file = self._whole.open()

    def write(self, data: bytes) -> None:
        """Write to the file. Raises as `open`."""
        with self.telling():
            self.file.write(data)

    def finish(self) -> None:
        """Rename the complete file to its final path, replacing an existing one. Raises as `open`."""
        with self.telling():
            self.file.flush()
            self.size = os.fstat(self.file.fileno()).st_size
            self._whole.finish()

    def close(self) -> None:
        """Close the file, if it is open. Remove an incomplete one."""
        self._whole.close()

    def telling(self) -> Telling:
        """Return a context manager that converts system errors to `StoreError` for this file."""
        return Telling(f"{self.path} cannot be written", "nothing was changed: an existing file of that name is as before")


class UnnamedFile:
    """A temporary file without a name, which disappears with this process.

    Attributes:
        file: The file, once open.
        size: Its size in bytes, once complete.
    """

    file: IO[bytes]

    def __init__(self) -> None:
        self.size = 0
        self._opened = False

    @property
    def path(self) -> Path:
        """Its path in this process, while it is open."""
        return Path(f"/dev/fd/{self.file.fileno()}")

    def open(self) -> None:
        """Create the file.

        Raises:
            StoreError: It cannot be written.
        """
        with self.telling():
            self.file = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
            self._opened = True

    def finish(self) -> None:
        """Rewind the file for reading. Raises as `open`."""
        with self.telling():
            self.file.flush()
            self.size = os.fstat(self.file.fileno()).st_size
            self.file.seek(0)

    def close(self) -> None:
        """Close the file, if it is open, which deletes it."""
        if self._opened:
            self._opened = False
            self.file.close()

    def telling(self) -> Telling:
        """Return a context manager that converts system errors to `StoreError` for this file."""
        return Telling(f"a temporary file in {tempfile.gettempdir()} cannot be written", "nothing was changed")
