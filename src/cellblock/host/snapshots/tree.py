"""The content of a workspace as immutable data. Snapshots share unchanged folders."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields

from cellblock.errors import InvalidInputError
from cellblock.host.snapshots.entries import Entry, Folder, LeftOut, Totals
from cellblock.host.snapshots.file import UNSEEN, File, Link, facts, is_kept, is_seen, seen_as, size_of

MIB = 2**20
_MOST_SHOWN = 100


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """The limits of a snapshot, which reports all excluded paths with reasons.

    Attributes:
        max_files: Maximum number of files, folders and links.
        max_total_bytes: Maximum total size of all files.
        max_file_bytes: Maximum size of one file.
        max_depth: Maximum nesting of folders.
        ignore: Names to exclude: patterns such as ``*.ckpt`` for files and folders anywhere in the workspace, or paths from
            its top with a leading slash.
        makeable: More paths to exclude, from the top with a leading slash. The session can create and then change them, so
            an undo moves them to the trash, or is refused.
    """

    max_files: int = 100_000
    max_total_bytes: int = 2048 * MIB
    max_file_bytes: int = 512 * MIB
    max_depth: int = 100
    # Not __pycache__: Python compares only seconds and sizes, so after an undo it would run the undone cell's code.
    ignore: tuple[str, ...] = (".git", ".venv", "node_modules")
    makeable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, tuple) and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidInputError(f"{field.name} must be a positive integer, not {value!r}")


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The files of a workspace at one time.

    Attributes:
        root: The top folder.
    """

    root: Folder

    @property
    def files(self) -> int:
        """Number of files."""
        return self.root.totals.files

    @property
    def bytes(self) -> int:
        """Total size in bytes."""
        return self.root.totals.bytes

    @property
    def left_out(self) -> tuple[tuple[str, str], ...]:
        """Excluded paths with reasons, at most a hundred."""
        return tuple(itertools.islice(_left_out(self.root), _MOST_SHOWN))

    @property
    def whole(self) -> bool:
        """Whether no limit of size or number excluded anything."""
        return self.root.totals.cut == 0

    @property
    def unkept(self) -> int:
        """Number of files without stored content: too large, unreadable, or skipped for lack of time."""
        return self.root.totals.unkept


def total(entries: Iterable[Entry], *, complete: bool = True) -> Totals:
    """Return the totals of some entries. `complete` says whether these are all entries of a folder."""
    count = files = size = unkept = left_out = cut = 0
    for entry in entries:
        count += 1
        if type(entry) is File:
            files += 1
            if is_kept(entry):
                size += size_of(entry)
            else:
                unkept += 1
        elif type(entry) is LeftOut:
            left_out += entry.told
            cut += entry.too_much
            unkept += entry.closed
        elif type(entry) is Folder:
            within = entry.totals
            count += within.entries
            files += within.files
            size += within.bytes
            unkept += within.unkept
            left_out += within.left_out
            cut += within.cut
    return Totals(count, files, size, unkept, left_out + (not complete), cut + (not complete))


def _left_out(folder: Folder, path: str = "") -> Iterator[tuple[str, str]]:
    if folder.totals.left_out == 0:
        return
    if not folder.complete:
        yield path, "there are more files than a snapshot holds"
    for name in folder.entries.special:
        entry, where = folder.entries[name], f"{path}/{name}" if path else name
        if isinstance(entry, Folder):
            yield from _left_out(entry, where)
        elif isinstance(entry, LeftOut) and entry.told:
            yield where, entry.reason


def status_of(entry: File | Link | Folder) -> bytes | None:
    """Return an entry's status (`file.seen`) at the time of the snapshot; None if unknown."""
    status = seen_as(entry) if isinstance(entry, File) else entry.status
    return None if status == UNSEEN else status


def same(one: Entry | None, other: Entry | None, *, times: bool = True) -> bool:
    """Return whether two entries, at most one of them a folder, are the same, with or without their modification times."""
    if one is other:
        return True
    if isinstance(one, File) and isinstance(other, File):
        if not is_kept(one) and not is_kept(other):
            return one == other and is_seen(one)
        first, second = facts(one), facts(other)
        unequal_times = times and first.mtime_ns != second.mtime_ns
        return first.digest == second.digest != b"" and first.mode == second.mode and not unequal_times
    return isinstance(one, Link) and isinstance(other, Link) and one.target == other.target


def differences(before: Entry | None, after: Entry | None, path: str = "") -> Iterator[tuple[str, Entry | None, Entry | None]]:
    """Yield the differences from an entry to a later state, except paths that one of them excludes.

    Yields:
        The path (with a trailing slash for folders), the entry before, and the entry after.
    """
    if before is after or isinstance(before, LeftOut) or isinstance(after, LeftOut):
        return
    if not isinstance(before, Folder) and not isinstance(after, Folder):
        if not same(before, after, times=False):
            yield path, before, after
        return
    if isinstance(before, Folder) and isinstance(after, Folder):
        if path and before.mode != after.mode:
            yield f"{path}/", before, after
    else:  # one of them is a folder: report a removal and an addition
        if before is not None:
            yield (f"{path}/" if isinstance(before, Folder) else path), before, None
        if after is not None:
            yield (f"{path}/" if isinstance(after, Folder) else path), None, after
    for name in sorted(_entries(before).keys() | _entries(after).keys()):
        old, new = _entries(before).get(name), _entries(after).get(name)
        # In a partly listed folder, a missing entry may exist.
        if (old is None and _is_cut_off(before)) or (new is None and _is_cut_off(after)):
            continue
        yield from differences(old, new, f"{path}/{name}" if path else name)


def unkept(folder: Folder) -> Iterator[tuple[str, File | LeftOut]]:
    """Yield a folder's files without stored content, and its unreadable entries, with their paths."""
    for path, entry in _special(folder, "", operator.attrgetter("unkept")):
        if (isinstance(entry, File) and not is_kept(entry)) or (isinstance(entry, LeftOut) and entry.closed):
            yield path, entry


def lasting(folder: Folder) -> Iterator[tuple[str, LeftOut]]:
    """Yield the entries in a folder that the session can change but no undo can restore, with their paths."""
    for path, entry in _special(folder, "", operator.attrgetter("left_out")):
        if isinstance(entry, LeftOut) and entry.lasting:
            yield path, entry


def _special(folder: Folder, path: str, count: Callable[[Totals], int]) -> Iterator[tuple[str, Entry]]:
    """Yield special entries in a folder and its subfolders (`Entries.special`), except folders, with their paths.

    `count` returns the number of wanted entries. A folder without any is not entered.
    """
    if count(folder.totals) == 0:
        return
    for name in folder.entries.special:
        entry, where = folder.entries[name], f"{path}/{name}" if path else name
        if isinstance(entry, Folder):
            yield from _special(entry, where, count)
        else:
            yield where, entry


def _entries(entry: Entry | None) -> Mapping[str, Entry]:
    return entry.entries if isinstance(entry, Folder) else {}


def _is_cut_off(entry: Entry | None) -> bool:
    return isinstance(entry, Folder) and not entry.complete
