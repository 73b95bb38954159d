"""Writes output that is too large to keep to files, on request. Files have limits: code decides how much it prints."""

from __future__ import annotations

import errno
import os
import threading
import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cellblock.host.files.beneath import create_file, remove_file

_EXTENSIONS = {
    "text/plain": "txt",
    "text/html": "html",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpg",
    "application/pdf": "pdf",
}
_FILES = 20
"""Files that the output of one cell may take: each costs more than its bytes."""


def reason(error: OSError) -> str:
    """Return why a file could not be made in a directory."""
    if error.errno == errno.ELOOP:
        return "the path has a symbolic link that a session could have made, which is not followed; name its target"
    return error.strerror or str(error)


@dataclass
class SpillDirectory:
    """The directory for output of a session that is too large to keep.

    Attributes:
        path: An absolute path. It is made when it is needed.
        cell: Bytes that the files of one cell may have.
        session: Bytes that the files of a session may have: the oldest are removed, but none of the last cell.
    """

    path: Path
    cell: int
    session: int

    def __post_init__(self) -> None:
        self._files: deque[tuple[str, int]] = deque()
        self._total = 0
        self._lock = threading.Lock()  # results are made in threads

    def keep(self, files: list[tuple[str, int]]) -> None:
        """Take note of the files of a cell, and remove the oldest ones of earlier cells where there are too many."""
        with self._lock:
            self._total += sum(size for _, size in files)
            while self._files and self._total > self.session:
                name, size = self._files.popleft()
                self._total -= size
                try:
                    remove_file(str(self.path), name)
                except OSError:
                    continue  # somebody else has removed it, or the directory
            self._files.extend(files)


class Spills:
    """The files of one cell.

    Attributes:
        paths: Those that were finished.
        problems: Why there are not more, or why some end early.
    """

    def __init__(self, directory: SpillDirectory | None) -> None:
        self.directory = directory
        self.room = 0 if directory is None else directory.cell
        self.paths: list[Path] = []
        self.problems: list[str] = []
        self._left = _FILES
        self._made: list[tuple[str, int]] = []

    def __getstate__(self) -> dict[str, Any]:
        """Return it for another host, which has a directory of its own."""
        return {**self.__dict__, "directory": None}

    def create(self, mime: str) -> tuple[BinaryIO, Path] | None:
        """Make a file for a value of some type; None if it cannot be made."""
        if self.directory is None:
            return None
        if not self._left or self.room <= 0:
            self.report(self.limit())
            return None
        self._left -= 1
        path = self.directory.path / f"{uuid.uuid4().hex[:12]}.{_EXTENSIONS.get(mime, 'bin')}"
        try:
            return os.fdopen(create_file(str(path.parent), path.name), "wb"), path
        except OSError as error:
            self.fail(error)
            return None

    def take(self, size: int) -> int:
        """Return how many of some bytes may be written, and count them."""
        if size > self.room:
            self.report(self.limit())
        taken = min(size, self.room)
        self.room -= taken
        return taken

    def limit(self) -> str:
        """Return what there is to say when the files of this cell have as much as they may."""
        assert self.directory is not None
        what = f"{_FILES} files with {self.directory.cell:,} bytes together (Limits.spill)"
        return f"not all that was left out is in {self.directory.path}: a cell may have {what}"

    def finish(self, path: Path, size: int) -> None:
        """Take note of a file that is complete."""
        self.paths.append(path)
        self._made.append((path.name, size))

    def fail(self, error: OSError) -> None:
        """Take note of a disk that takes no more."""
        assert self.directory is not None
        self.report(f"the whole output could not be written to {self.directory.path}: {reason(error)}")

    def report(self, problem: str) -> None:
        """Take note of a problem, once."""
        if (line := f"[cellblock] {problem}") not in self.problems:
            self.problems.append(line)

    def close(self) -> None:
        """Hand over what was made: no more is."""
        made, self._made = self._made, []
        if self.directory is not None and made:
            self.directory.keep(made)


class Spill:
    """A file that is created when something is first left out, and then contains all of it.

    A disk that fails costs the file, not the cell. So does a link that the session made to lead us elsewhere: none is
    followed.

    It is written where the output is taken, on the host's loop, so a disk that stalls holds the loop. A thread with a queue
    would have to be bounded too, and then the kernel has to wait for the disk, and the result for the queue: what the
    result says of the file (its size, why it ends early) is known only when all is written.

    Attributes:
        path: The file, once it was made.
    """

    def __init__(self, spills: Spills, mime: str) -> None:
        self._spills = spills
        self._mime = mime
        self._file: BinaryIO | None = None
        self._begun = False
        self._size = 0
        self._cut = False
        self.path: Path | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what another host can know of it. It does not write to a file that this one has made."""
        return {**self.__dict__, "_file": None, "_cut": self._cut or self._file is not None}

    def begin(self, so_far: Iterable[bytes | bytearray]) -> None:
        """Make the file, where a directory was given and there is none yet, and write what came before."""
        if self._begun:
            return
        self._begun = True
        if (made := self._spills.create(self._mime)) is not None:
            self._file, self.path = made
            for data in so_far:
                self.write(data)

    def write(self, data: bytes | bytearray) -> None:
        """Write what comes, once the file was begun."""
        if self._file is None:
            return
        data = data[: self._spills.take(len(data))]
        self._size += len(data)
        try:
            self._file.write(data)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self._give_up(error)
            self._file = None
        if self._cut and self._size >= 0:
            self._spills.report(f"{self.path} ends early: cellblock was killed, and its next process goes on without it")
        if self.path is not None and self._size >= 0:
            self._spills.finish(self.path, self._size)
            self._size = -1

    def _give_up(self, error: OSError) -> None:
        self._spills.fail(error)
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                pass  # closing flushes, and so fails again on a full disk; the descriptor is closed all the same
