"""Writes output to files within limits: images, and output above the memory limits."""

from __future__ import annotations

import asyncio
import errno
import os
import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cellblock.host.files.beneath import create_file, remove_file
from cellblock.host.output.disk import DiskThread
from cellblock.model.blocks import PICTURES
from cellblock.wire.messages import TEXT_MIME

_EXTENSIONS = {
    TEXT_MIME: "txt",
    "text/plain": "txt",
    "text/html": "html",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpg",
    "application/pdf": "pdf",
}
_FILES = 20
"""Maximum number of files for the output of one cell: each costs more than its bytes."""
_PIECE = 256 * 1024
"""Bytes that are passed to the disk thread at once."""
_MAX_WAITING = 8 * 1024 * 1024
"""Bytes of a session that may wait for the disk before the kernel has to wait."""
_MOST_WAITING = 64 * 1024 * 1024
"""Bytes that may wait for the disk in any case: values come all at once, and a kernel that is being stopped never waits."""
_PATIENCE = 30.0
"""Seconds that a result waits for the disk."""


def reason(error: OSError) -> str:
    """Return why a file could not be created in a directory."""
    if error.errno == errno.ELOOP:
        return "the path has a symbolic link that a session could have created; pass the path of its target"
    return error.strerror or str(error)


@dataclass
class SpillDirectory:
    """A session's directory for output above the memory limits.

    Attributes:
        path: An absolute path, created on demand.
        cell: Byte limit of one cell's files.
        session: Byte limit of a session's files. The oldest are removed, but none of the last cell.
        disk: The thread that writes the files.
        stalled: Whether the disk has delayed a result for too long.
    """

    path: Path
    cell: int
    session: int

    def __post_init__(self) -> None:
        self._files: deque[tuple[str, int]] = deque()
        self._total = 0
        self.disk = DiskThread()
        self.stalled = False

    def keep(self, files: list[tuple[str, int]]) -> None:
        """Add the files of a cell, and remove the oldest ones of earlier cells above the limit."""
        self._total += sum(size for _, size in files)
        while self._files and self._total > self.session:
            name, size = self._files.popleft()
            self._total -= size
            try:
                remove_file(str(self.path), name)
            except OSError:
                continue  # something else removed it, or the directory
        self._files.extend(files)


class Spills:
    """The files of one cell.

    Attributes:
        paths: The finished files.
        problems: Why there are no more, or why some are truncated.
    """

    def __init__(self, directory: SpillDirectory | None) -> None:
        self.directory = directory
        self.room = 0 if directory is None else directory.cell
        self.paths: list[Path] = []
        self.problems: list[str] = []
        self._left = _FILES
        self._hurried = False
        self._made: list[tuple[str, int]] = []

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another host, which has its own directory."""
        return {**self.__dict__, "directory": None}

    @property
    def begun(self) -> bool:
        """Whether there is a file."""
        return self._left < _FILES

    @property
    def behind(self) -> bool:
        """Whether the kernel should wait for the disk."""
        return self.begun and self._waiting > _MAX_WAITING and not self._hurried

    @property
    def _waiting(self) -> int:
        return 0 if self.directory is None else self.directory.disk.waiting

    def hurry(self) -> None:
        """Stop making the kernel wait, because it is being stopped. Files are truncated instead."""
        self._hurried = True

    def new_path(self, mime: str) -> Path | None:
        """Return the path for a value of some type; None if no further file is allowed."""
        if self.directory is None:
            return None
        if not self._left or self.room <= 0:
            self.report(self.limit())
            return None
        self.directory.stalled = self.directory.stalled and self._waiting > 0
        if self.directory.stalled:
            self.report(f"the whole output is not in {self.directory.path}: the disk accepts no writes")
            return None
        self._left -= 1
        return self.directory.path / f"{uuid.uuid4().hex[:12]}.{_EXTENSIONS.get(mime, 'bin')}"

    def fits(self) -> bool:
        """Return whether there is room in memory for data that waits for the disk."""
        if self._waiting <= _MOST_WAITING:
            return True
        assert self.directory is not None
        self.report(f"the whole output is not in {self.directory.path}: the disk is too slow")
        return False

    def take(self, size: int) -> int:
        """Reserve up to `size` bytes of the limit, and return how many may be written."""
        if size > self.room:
            self.report(self.limit())
        taken = min(size, self.room)
        self.room -= taken
        return taken

    def limit(self) -> str:
        """Return the message for when the files of this cell have reached their limit."""
        assert self.directory is not None
        what = f"{_FILES} files with {self.directory.cell:,} bytes together (Limits.spill)"
        return f"some left-out output is missing in {self.directory.path}: a cell may have {what}"

    def finish(self, path: Path, size: int) -> None:
        """Add a complete file."""
        self.paths.append(path)
        self._made.append((path.name, size))

    def fail(self, error: OSError) -> None:
        """Report a failed write."""
        assert self.directory is not None
        self.report(f"the whole output could not be written to {self.directory.path}: {reason(error)}")

    def report(self, problem: str) -> None:
        """Record a problem, once."""
        if (line := f"[cellblock] {problem}") not in self.problems:
            self.problems.append(line)

    def close(self) -> None:
        """Add the finished files to the directory, after the last one."""
        if self.directory is not None and self.begun:
            self.directory.disk.do(self._keep)

    def _keep(self) -> None:
        made, self._made = self._made, []
        if self.directory is not None and made:
            self.directory.keep(made)

    async def written(self) -> None:
        """Wait until everything is on disk, or the disk has stalled for too long."""
        if self.directory is None or not self.begun:
            return
        try:
            async with asyncio.timeout(_PATIENCE):
                await self.directory.disk.done()
        except TimeoutError:
            self.directory.stalled = True
            self.report(f"the output is not yet in {self.directory.path}: the disk has not written it for {_PATIENCE:g} s")


class _File:
    """A file, as used by the disk thread."""

    def __init__(self, spills: Spills, path: Path) -> None:
        self._spills = spills
        self._path = path
        self._descriptor: int | None = None
        self._failed = False
        self._size = 0

    def write(self, data: bytes | bytearray) -> None:
        """Write data. Create a missing file first."""
        if self._failed:
            return
        try:
            if self._descriptor is None:
                self._descriptor = create_file(str(self._path.parent), self._path.name)
            view = memoryview(data)
            while view:
                written = os.write(self._descriptor, view)
                self._size += written
                view = view[written:]
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Close the file, and add it to the finished files if it was created."""
        if self._descriptor is not None:
            try:
                os.close(self._descriptor)
            except OSError as error:  # a network file system may report only now that it is full
                self._fail(error)
            self._descriptor = None
            self._spills.finish(self._path, self._size)

    def _fail(self, error: OSError) -> None:
        self._failed = True
        self._spills.fail(error)

    def __del__(self) -> None:
        """Close the file of a cell without a result, because its session was closed meanwhile."""
        if self._descriptor is not None:
            os.close(self._descriptor)


class Spill:
    """A file that is created when output is first omitted, and then contains all of it.

    If the disk fails, the file is lost, not the cell. Links are not followed, because a session may have created one. A slow
    disk delays the kernel but not the event loop, because a thread writes.

    Attributes:
        path: The file's path, once begun.
    """

    def __init__(self, spills: Spills, mime: str) -> None:
        self._spills = spills
        self._mime = mime
        self._file: _File | None = None
        self._pending = bytearray()
        self._begun = False
        self._size = 0
        self._cut = False
        self.path: Path | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another host, which does not write to this host's file."""
        cut = self._cut or self._file is not None
        return {**self.__dict__, "_file": None, "_pending": bytearray(), "_cut": cut}

    def begin(self, so_far: Iterable[bytes | bytearray]) -> None:
        """Create the file, if there is a directory and no file yet, and write the earlier output to it."""
        if self._begun:
            return
        self._begun = True
        self.path = self._spills.new_path(self._mime)
        if self.path is not None:
            self._file = _File(self._spills, self.path)
            for data in so_far:
                self.write(data)

    def write(self, data: bytes | bytearray) -> None:
        """Write more data, if the file was begun."""
        if self._file is None:
            return
        if not self._spills.fits():
            self.close()
            return
        taken = self._spills.take(len(data))
        self._pending += data[:taken]
        self._size += taken
        if len(self._pending) >= _PIECE:
            self._hand_over()

    def _hand_over(self) -> None:
        directory = self._spills.directory
        assert self._file is not None
        assert directory is not None
        piece, self._pending = self._pending, bytearray()
        directory.disk.do(partial(self._file.write, piece), len(piece))

    def close(self) -> None:
        """Close the file. It is complete after `Spills.written`."""
        directory = self._spills.directory
        if self._file is not None and directory is not None:
            self._hand_over()
            directory.disk.do(self._file.close)
            self._file = None
        if self._cut and self.path is not None:
            self._cut = False
            self._spills.report(f"{self.path} ends early: cellblock was killed, and its next process cannot complete it")
            self._spills.finish(self.path, self._size)


def save_images(images: Iterable[tuple[str, bytes]], directory: Path) -> tuple[list[Path], list[str]]:
    """Write images to files.

    Args:
        images: Their types and contents.
        directory: An absolute path. No link in it is followed, because a session may have created one.

    Returns:
        The paths, and a note for each image that could not be written.
    """
    paths: list[Path] = []
    notes: list[str] = []
    for mime, data in images:
        path = directory / f"{uuid.uuid4().hex[:8]}.{PICTURES[mime]}"
        try:
            with open(create_file(str(directory), path.name), "wb") as file:
                file.write(data)
        except OSError as error:
            notes.append(f"[cellblock] an image could not be saved in {directory}: {reason(error)}")
            continue
        paths.append(path)
    return paths, notes
