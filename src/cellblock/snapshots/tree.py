"""What a workspace holds, as frozen data. Folders that have not changed are shared between snapshots."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple, TypeAlias

from cellblock.errors import InvalidInputError
from cellblock.snapshots.entries import Entries
from cellblock.snapshots.file import File, Link, Owner, facts, is_kept, is_seen, size_of

MIB = 2**20
_MOST_SHOWN = 100


class LeftOut(NamedTuple):
    """Something that a snapshot does not hold.

    Attributes:
        reason: Why.
        folder: Whether it is a folder.
        ours: Whether restoring a snapshot that does not have it may remove it.
        too_much: Whether it is left out because it is too large or there is too much.
        told: Whether anybody is told.
    """

    reason: str
    folder: bool
    ours: bool = False
    too_much: bool = False
    told: bool = True


class Totals(NamedTuple):
    """How much there is in a folder and below it.

    Attributes:
        entries: Files, folders and links.
        files: Files that are not left out.
        bytes: Bytes of the files whose content was kept.
        unkept: Files whose content was not kept.
        left_out: What is left out.
        cut: How much of that is because it is too large or there is too much.
    """

    entries: int = 0
    files: int = 0
    bytes: int = 0
    unkept: int = 0
    left_out: int = 0
    cut: int = 0

    def plus(self, other: Totals) -> Totals:
        """Return how much these are together."""
        return Totals(*(one + two for one, two in zip(self, other, strict=True)))

    def minus(self, other: Totals) -> Totals:
        """Return how much is left without the other."""
        return Totals(*(one - two for one, two in zip(self, other, strict=True)))


class Folder(NamedTuple):
    """A folder.

    Attributes:
        mode: Its permissions.
        owner: Whose it is.
        entries: What is in it, by name.
        complete: Whether all that is in it is in `entries`.
        totals: How much is in it.
    """

    mode: int
    owner: Owner
    entries: Entries
    complete: bool
    totals: Totals


Entry: TypeAlias = File | Link | LeftOut | Folder


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """What a snapshot holds at most. For everything else, it says why it is left out.

    Attributes:
        max_files: Files, folders and links.
        max_total_bytes: Bytes of all files together.
        max_file_bytes: Bytes of one file.
        max_depth: Folders within folders.
        ignore: What is left out: names, with wildcards as in ``*.ckpt``, of files and folders anywhere in the workspace, or
            paths from its top, which begin with a slash.
    """

    max_files: int = 100_000
    max_total_bytes: int = 2048 * MIB
    max_file_bytes: int = 512 * MIB
    max_depth: int = 100
    # Not __pycache__: Python compares seconds and sizes only, so after an undo it would run what the undone cell had written.
    ignore: tuple[str, ...] = (".git", ".venv", "node_modules")

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "ignore" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidInputError(f"{field.name} must be a positive integer, not {value!r}")


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The files of a workspace at one time.

    Attributes:
        root: The workspace.
    """

    root: Folder

    @property
    def files(self) -> int:
        """How many files it holds."""
        return self.root.totals.files

    @property
    def bytes(self) -> int:
        """How many bytes they have."""
        return self.root.totals.bytes

    @property
    def left_out(self) -> tuple[tuple[str, str], ...]:
        """Paths that it does not hold, and why: a hundred at most."""
        return tuple(itertools.islice(_left_out(self.root), _MOST_SHOWN))

    @property
    def left_out_count(self) -> int:
        """How many these are in all."""
        return self.root.totals.left_out

    @property
    def whole(self) -> bool:
        """Whether nothing is left out because it is too large or there is too much."""
        return self.root.totals.cut == 0

    @property
    def unkept(self) -> int:
        """How many files it knows of whose content was not kept: they were too large, or there was no time."""
        return self.root.totals.unkept


def total(entries: Iterable[Entry], *, complete: bool = True) -> Totals:
    """Return how much some entries are.

    Args:
        entries: The entries.
        complete: Whether these are all that is in a folder.
    """
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


def same(one: Entry | None, other: Entry | None, *, times: bool = True) -> bool:
    """Whether two entries, of which at most one is a folder, are the same.

    Args:
        one: One entry.
        other: The other.
        times: Whether it matters when files were modified.
    """
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
    """Yield what differs, with its path: never what one of the two has left out.

    Args:
        before: The earlier state.
        after: The later state.
        path: Where these are.

    Yields:
        Paths, those of folders with a slash at their ends; what was there before, and after.
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
    else:  # one of them is a folder: what was there is gone, and the other is new
        if before is not None:
            yield (f"{path}/" if isinstance(before, Folder) else path), before, None
        if after is not None:
            yield (f"{path}/" if isinstance(after, Folder) else path), None, after
    for name in sorted(_entries(before).keys() | _entries(after).keys()):
        old, new = _entries(before).get(name), _entries(after).get(name)
        # In a folder that was not listed as a whole, what is missing may be there.
        if (old is None and _is_cut_off(before)) or (new is None and _is_cut_off(after)):
            continue
        yield from differences(old, new, f"{path}/{name}" if path else name)


def unkept(folder: Folder, path: str = "") -> Iterator[tuple[str, File]]:
    """Yield the files in a folder whose content was not kept, with their paths."""
    if folder.totals.unkept == 0:
        return
    for name in folder.entries.special:
        entry, where = folder.entries[name], f"{path}/{name}" if path else name
        if isinstance(entry, Folder):
            yield from unkept(entry, where)
        elif isinstance(entry, File) and not is_kept(entry):
            yield where, entry


def _entries(entry: Entry | None) -> Mapping[str, Entry]:
    return entry.entries if isinstance(entry, Folder) else {}


def _is_cut_off(entry: Entry | None) -> bool:
    return isinstance(entry, Folder) and not entry.complete
