"""Descriptions of files as immutable data, and the limits of file operations."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, fields

from cellblock.errors import InvalidInputError
from cellblock.model.files import FileInfo, FileKind

Parts = tuple[str, ...]
"""A path as its components: none is empty, ``.`` or ``..``, none contains a slash or a NUL; ``()`` is the tree's root."""

MIB = 2**20

BRANCHES = ".cellblock-branch-"
"""Prefix of the names of the branches' directories, at the top of a workspace. Lists and snapshots leave them out."""


@dataclass(frozen=True, slots=True)
class FileLimits:
    """The limits of one operation. Exceeding one raises an error that names it, before or during reading.

    Attributes:
        max_file_bytes: Maximum size of one file.
        max_total_bytes: Maximum total size of all files.
        max_entries: Maximum number of files, folders and links in a listing, a transfer or an archive.
        max_depth: Maximum nesting of folders, from the workspace or from the folder of the operation.
    """

    max_file_bytes: int = 1024 * MIB
    max_total_bytes: int = 4096 * MIB
    max_entries: int = 100_000
    max_depth: int = 100

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInputError(f"{field.name} must be a positive integer, not {value!r}")


@dataclass(frozen=True, slots=True)
class Skipped:
    """An entry omitted from a transfer.

    Attributes:
        path: Its path relative to the transferred folder.
        reason: Why, such as ``symbolic link``.
    """

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """The outcome of an upload, a download or an unpacked archive.

    Attributes:
        files: Number of files.
        bytes: Total size in bytes.
        skipped: Omitted entries: links, FIFOs, sockets, devices, and entries that changed their kind during the transfer.
    """

    files: int
    bytes: int
    skipped: tuple[Skipped, ...] = ()


def kind_of(mode: int) -> FileKind:
    """Return the kind of an inode by its mode."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def show(parts: Parts) -> str:
    """Join the components of a path for display."""
    return "/".join(parts) or "."


def describe(parts: Parts, info: os.stat_result) -> FileInfo:
    """Return the result of `lstat` as a `FileInfo`."""
    return FileInfo(show(parts), kind_of(info.st_mode), info.st_size, info.st_mtime, stat.S_IMODE(info.st_mode))
