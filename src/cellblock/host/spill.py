"""Output that is too large to keep, in files, for whoever asked for that."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from cellblock.host.files.beneath import create_file

_EXTENSIONS = {"text/plain": "txt", "text/html": "html", "image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpg"}


def reason(error: OSError) -> str:
    """Return why a file could not be made in a directory."""
    if error.errno == errno.ELOOP:
        return "a symbolic link lies on the way, and none that a session can make is followed; name the directory behind it"
    return error.strerror or str(error)


class Spill:
    """A file that is made when something is first left out, and then holds all of it.

    A disk that fails costs the file, not the cell: the reason stands in `problem`. So does a link that the session made to
    lead us elsewhere: none is followed.

    Attributes:
        path: The file, once it was made.
        problem: Why there is none, or why it ends early.
    """

    def __init__(self, directory: Path | None, mime: str) -> None:
        self._directory = directory
        self._mime = mime
        self._file: BinaryIO | None = None
        self.path: Path | None = None
        self.problem: str | None = None

    def begin(self, so_far: Iterable[bytes | bytearray]) -> None:
        """Make the file, where a directory was given and there is none yet, and write what came before."""
        if self._directory is None or self.path is not None or self.problem is not None:
            return
        path = self._directory / f"{uuid.uuid4().hex[:12]}.{_EXTENSIONS.get(self._mime, 'bin')}"
        try:
            self._file = os.fdopen(create_file(str(self._directory), path.name), "wb")
        except OSError as error:
            self._give_up(error)
            return
        self.path = path
        for data in so_far:
            self.write(data)

    def write(self, data: bytes | bytearray) -> None:
        """Write what comes, once the file was begun."""
        if self._file is None:
            return
        try:
            self._file.write(data)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file."""
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError as error:
            self._give_up(error)
        self._file = None

    def _give_up(self, error: OSError) -> None:
        self.problem = f"[cellblock] the whole output could not be written to {self._directory}: {reason(error)}"
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                pass  # closing flushes, and so fails again on a full disk; the descriptor is closed all the same
