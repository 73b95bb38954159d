"""The file of a saved session: an uncompressed ZIP archive with a JSON manifest, pickles, and the code of the cells.

The pickles are not read here. A file to load is untrusted: every length is checked before memory is allocated for it.
"""

from __future__ import annotations

import io
import json
import os
import stat
import struct
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from cellblock.common.version import __version__
from cellblock.errors import InvalidInputError, ProtocolError
from cellblock.host.new_file import NewFile, Telling, UnnamedFile
from cellblock.model import HistoryEntry
from cellblock.model.clones import COMMIT
from cellblock.model.saving import SaveReport
from cellblock.model.untrusted import parse_json
from cellblock.wire.saved import FORMAT, MAX_STATE, Manifest, State, read, write

MANIFEST, VARIABLES, CELLS, WORKSPACE = "manifest.json", "variables.pickle", "cells.jsonl", "workspace.tar"
CLONE = "clone"
PIECE = 1024 * 1024
"""Bytes that are read or written at once."""

_FIRST_TIME, _LAST_TIME = (1980, 1, 1, 0, 0, 0), (2107, 12, 31, 23, 59, 58)
_MAX_DIRECTORY = 128 * 1024
_MAX_CELLS, _MAX_CELL = 1000, 2 * 1024 * 1024
_STATUSES = ("success", "error", "timeout", "interrupted", "died", "max_attempts_exceeded")


class SavedFile:
    """A saved session's file, for writing.

    Attributes:
        file: The file.
    """

    def __init__(self, path: str | os.PathLike[str] | UnnamedFile) -> None:
        """Validate the path. `open` creates the file.

        Args:
            path: Its path, or another file, which `open` opens.

        Raises:
            InvalidInputError: The path is a directory.
        """
        self.file = path if isinstance(path, UnnamedFile) else NewFile(path)
        self._member: IO[bytes] | None = None
        self._zip: zipfile.ZipFile | None = None

    def open(self) -> None:
        """Create the file. Raises as `NewFile.open`, like the other methods."""
        self.file.open()
        self._zip = zipfile.ZipFile(self.file.file, "w", zipfile.ZIP_STORED, strict_timestamps=False)

    def begin(self, name: str) -> None:
        """End the current member and start a new one."""
        assert self._zip is not None
        with self.file.telling():
            self._end_member()
            self._member = self._zip.open(_new_member(name), "w", force_zip64=True)

    def write(self, data: bytes) -> None:
        assert self._member is not None
        with self.file.telling():
            self._member.write(data)

    def finish(self, state: State, cells: Iterable[HistoryEntry]) -> None:
        """Write the remaining members, and rename the file to its final path."""
        assert self._zip is not None
        self.begin(CELLS)
        for cell in cells:
            line = {"code": cell.code, "status": cell.status, "execution_count": cell.execution_count}
            self.write(json.dumps(line).encode() + b"\n")
        with self.file.telling():
            self._end_member()
            manifest = Manifest(FORMAT, __version__, datetime.now(UTC).isoformat(timespec="seconds"), state)
            self._zip.writestr(_new_member(MANIFEST), write(manifest))
            self._zip.close()
        self.file.finish()

    def _end_member(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            member.close()

    def close(self) -> None:
        """Close the file, if it is open. Remove an incomplete one."""
        archive, self._zip = self._zip, None
        if archive is not None:
            with suppress(Exception):  # an incomplete member cannot be closed, and is not needed
                self._end_member()
            archive.fp = None  # closing the archive would write to the file
        self.file.close()


def _new_member(name: str) -> zipfile.ZipInfo:
    """Return a member with the current time, within the range of ZIP: machines without a battery start in 1970."""
    return zipfile.ZipInfo(name, min(max(time.localtime()[:6], _FIRST_TIME), _LAST_TIME))


class _Bounded(io.FileIO):
    """A file with a limit on each read, because `zipfile` trusts the lengths in an archive.

    Attributes:
        most: Maximum size of one read in bytes.
    """

    def __init__(self, path: Path) -> None:
        # Opening must not block on a FIFO.
        super().__init__(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
        self.most = _MAX_DIRECTORY

    def read(self, size: int | None = -1, /) -> bytes:
        """Read exactly `size` bytes, fewer only at the end of the file."""
        size = self.most + 1 if size is None or size < 0 else size
        _check_part(size, self.most)
        pieces = []
        while size and (piece := super().read(size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


def _check_part(size: int, most: int) -> None:
    if size > most + 1:
        raise InvalidInputError(f"a part of {size:,} bytes is over the limit of {most:,}")


class LoadedFile:
    """A saved session's file, for reading.

    Attributes:
        path: Its path.
        name: Its name in error messages.
        manifest: Its manifest.
        cells: The cells of the session, oldest first.
        has_workspace: Whether it contains the workspace's files.
        base: The commit that the session's clone began with, if these files are a clone; else empty.
    """

    manifest: Manifest
    cells: list[HistoryEntry]
    has_workspace = False
    base = ""

    def __init__(self, path: str | os.PathLike[str], name: str = "") -> None:
        """Set the path. `open` opens the file.

        Args:
            path: Its path.
            name: Its name in error messages; by default its path.
        """
        self.path = Path(path).expanduser().absolute()
        self.name = name or str(self.path)
        self._what = f"{self.name} cannot be loaded"
        self._file: _Bounded | None = None

    def open(self) -> None:
        """Open and validate the file.

        Raises:
            InvalidInputError: It is not a saved session, or is damaged.
            StoreError: It cannot be read.
        """
        with Telling(self._what, "nothing was changed"):
            self._file = _Bounded(self.path)
        self._checked(self._read)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def variables(self) -> Iterator[bytes]:
        """Yield the pickles in pieces.

        Raises:
            InvalidInputError: The file is damaged.
            StoreError: It cannot be read.
        """
        return self._pieces(VARIABLES)

    def workspace(self) -> Iterator[bytes]:
        """Yield the tar archive of the workspace in pieces. Raises as `variables`."""
        return self._pieces(WORKSPACE)

    def _pieces(self, name: str) -> Iterator[bytes]:
        member = self._checked(lambda: self._zip.open(name))
        with member:
            while piece := self._checked(lambda: member.read(PIECE)):
                yield piece

    def _checked(self, function: Callable[[], Any]) -> Any:
        """Call a function that reads the archive, and convert its exceptions to our errors."""
        try:
            with Telling(self._what, "nothing was changed"):
                return function()
        except (zipfile.BadZipFile, InvalidInputError, ProtocolError, NotImplementedError) as error:
            why = str(error)[:300]
        except (ValueError, KeyError, TypeError, EOFError, IndexError, RuntimeError, struct.error, RecursionError) as error:
            why = f"{type(error).__name__}: {str(error)[:300]}"  # from `zipfile`, which does not handle every kind of damage
        raise InvalidInputError(f"{self._what}: it is not a saved session, or is damaged: {why}")

    def _read(self) -> None:
        file = self._file
        assert file is not None
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInputError("it is not a file")
        self._zip = zipfile.ZipFile(file)
        self._check_members(status.st_size)
        file.most = MAX_STATE
        manifest = read(Manifest, self._zip.read(MANIFEST))
        if manifest.format != FORMAT:
            raise InvalidInputError(
                f"it has format {manifest.format}, of cellblock {manifest.version[:50]}; this one reads {FORMAT}"
            )
        state = manifest.state
        total = self._zip.getinfo(VARIABLES).file_size
        if any(group.size < 0 for group in state.groups) or sum(group.size for group in state.groups) != total:
            raise InvalidInputError("its pickles do not have the lengths in its manifest")
        self.has_workspace = WORKSPACE in self._zip.namelist()
        if CLONE in self._zip.namelist():
            self.base = self._zip.read(CLONE).decode("ascii")
            if not COMMIT.fullmatch(self.base) or not self.has_workspace:
                raise InvalidInputError("its clone has no valid first commit, or no files")
        self.manifest, self.cells = manifest, [*self._read_cells()]
        file.most = 2 * PIECE

    def _check_members(self, size: int) -> None:
        members = self._zip.infolist()
        known = {MANIFEST, VARIABLES, CELLS, WORKSPACE, CLONE}
        found = [member.filename for member in members]
        if len(set(found)) < len(found) or not known - {WORKSPACE, CLONE} <= set(found) <= known:
            optional = f"{WORKSPACE} and {CLONE}"
            raise InvalidInputError(f"it must hold {MANIFEST}, {VARIABLES}, {CELLS}, and {optional} at most, each once")
        for member in members:
            _check_stored(member)
        _check_total(members, size)
        if self._zip.getinfo(MANIFEST).file_size > MAX_STATE:
            raise InvalidInputError(f"its manifest is over the limit of {MAX_STATE:,} bytes")

    def _read_cells(self) -> Iterator[HistoryEntry]:
        with self._zip.open(CELLS) as file:
            for number in range(_MAX_CELLS + 1):
                line = file.readline(_MAX_CELL + 1)
                if not line:
                    return
                if number == _MAX_CELLS or len(line) > _MAX_CELL:
                    raise InvalidInputError(f"it has more than {_MAX_CELLS:,} cells, or one of more than {_MAX_CELL:,} bytes")
                yield _cell(parse_json(line, what="a cell"))


def _check_stored(member: zipfile.ZipInfo) -> None:
    """Check that a member is not compressed, so that it cannot exceed its size in the file."""
    if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size or member.flag_bits & 1:
        raise InvalidInputError(f"{member.filename} is compressed or encrypted, which a saved session never is")


def _check_total(members: list[zipfile.ZipInfo], size: int) -> None:
    if sum(member.file_size for member in members) > size:
        raise InvalidInputError("its members overlap, or are longer than the file")


def report(path: str | os.PathLike[str]) -> SaveReport:
    """Return a report about a file's content.

    Raises:
        InvalidInputError, StoreError: As `LoadedFile.open`.
    """
    file = LoadedFile(path)
    try:
        file.open()
        return SaveReport(
            file.path,
            file.path.stat().st_size,
            file.manifest.state.names,
            [*file.manifest.state.left_out],
            len(file.cells),
            file.has_workspace,
        )
    finally:
        file.close()


def _cell(data: Any) -> HistoryEntry:
    code, status, count = data["code"], data["status"], data["execution_count"]
    if type(code) is not str or status not in _STATUSES or (count is not None and type(count) is not int):
        raise InvalidInputError("a cell has a field of the wrong type")
    return HistoryEntry(code, status, count)
