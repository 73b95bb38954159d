"""Folders and their entries as immutable data. Modified copies share unchanged parts."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from cellblock.host.snapshots.file import UNSEEN, File, Link, Owner, is_kept

_PART = 128
"""Approximate number of names in a part. A folder can have 10,000 files, and each cell changes one."""


class LeftOut(NamedTuple):
    """An entry that a snapshot excludes.

    Attributes:
        reason: Why.
        folder: Whether it is a folder.
        ours: Whether the restore of a snapshot without it may remove it.
        too_much: Whether the reason is a limit of size or number.
        told: Whether it is reported.
        closed: Whether it is unreadable now. A change of it prevents an undo of the cell.
        lasting: Whether the session can change it. An undo of such a change is refused, because it cannot be restored.
        changed: Its change time, if it is not a folder; 0 if unknown.
    """

    reason: str
    folder: bool
    ours: bool = False
    too_much: bool = False
    told: bool = True
    closed: bool = False
    lasting: bool = False
    changed: int = 0


class Totals(NamedTuple):
    """Totals of a folder, including all subfolders.

    Attributes:
        entries: Number of files, folders and links.
        files: Number of files that are not excluded.
        bytes: Total size of the files with stored content.
        unkept: Number of files without stored content, and of unreadable entries.
        left_out: Number of excluded entries.
        cut: Number of entries excluded because of a limit of size or number.
    """

    entries: int = 0
    files: int = 0
    bytes: int = 0
    unkept: int = 0
    left_out: int = 0
    cut: int = 0

    def plus(self, other: Totals) -> Totals:
        """Return the sum of both."""
        return Totals(*(one + two for one, two in zip(self, other, strict=True)))

    def minus(self, other: Totals) -> Totals:
        """Return the difference of both."""
        return Totals(*(one - two for one, two in zip(self, other, strict=True)))


class Folder(NamedTuple):
    """A folder.

    Attributes:
        mode: Permissions.
        owner: Owner.
        entries: Entries by name.
        complete: Whether `entries` contains all entries.
        totals: Totals.
        status: Status (`file.seen`); `UNSEEN` for the workspace itself.
    """

    mode: int
    owner: Owner
    entries: Entries
    complete: bool
    totals: Totals
    status: bytes = UNSEEN


class Trashed(NamedTuple):
    """A file or link in the trash, for a plan.

    Attributes:
        path: Its path in the trash entry.
    """

    path: str


Entry: TypeAlias = File | Link | LeftOut | Folder | Trashed


class Entries(Mapping[str, "Entry"]):
    """An immutable mapping from names to entries.

    Attributes:
        parts: The mapping in parts, chosen by `_place`.
        special: The names of all entries but links and files with stored content.
    """

    __slots__ = ("parts", "special")

    def __init__(self, entries: dict[str, Entry]) -> None:
        """Build the mapping from entries that are not modified later."""
        self.special = frozenset(name for name, entry in entries.items() if _is_special(entry))
        number = len(entries) // _PART
        if number <= 1:
            self.parts: tuple[dict[str, Entry], ...] = (entries,)
            return
        self.parts = tuple({} for _ in range(number))
        for name, entry in entries.items():
            self.parts[_place(name, number)][name] = entry

    @classmethod
    def of_parts(cls, parts: Sequence[dict[str, Entry]]) -> Entries:
        """Return a mapping with these parts, possibly from another process."""
        new = cls.__new__(cls)
        new.parts = tuple(parts)
        new.special = frozenset(name for part in parts for name, entry in part.items() if _is_special(entry))
        return new

    def changed(self, changes: Mapping[str, Entry | None]) -> Entries:
        """Return a copy with other entries for some names. None removes a name."""
        number = len(self.parts)
        parts = [*self.parts]
        for name, entry in changes.items():
            where = _place(name, number)
            if parts[where] is self.parts[where]:
                parts[where] = {**parts[where]}
            if entry is None:
                parts[where].pop(name, None)
            else:
                parts[where][name] = entry
        if max(map(len, parts)) > 4 * _PART:  # it has grown
            return Entries(dict(itertools.chain.from_iterable(part.items() for part in parts)))
        new = Entries.__new__(Entries)
        new.parts, new.special = tuple(parts), self.special
        special = {name for name, entry in changes.items() if entry is not None and _is_special(entry)}
        if special or not self.special.isdisjoint(changes):
            new.special = self.special - changes.keys() | special
        return new

    def unlike(self, other: Entries) -> Iterator[str]:
        """Yield the names whose entries are different objects in another mapping. Shared parts are skipped."""
        if len(self.parts) == len(other.parts):
            pairs = [(one, two) for one, two in zip(self.parts, other.parts, strict=True) if one is not two]
        else:
            pairs = [({**self}, {**other})]
        for one, two in pairs:
            yield from (name for name in one.keys() | two.keys() if one.get(name) is not two.get(name))

    @property
    def getter(self) -> Callable[[str], Entry | None]:
        """The fastest function to look up names."""
        return self.parts[0].get if len(self.parts) == 1 else self.get

    def get(self, name: str, default: Any = None) -> Any:
        return self.parts[_place(name, len(self.parts))].get(name, default)

    def items(self) -> ItemsView[str, Entry]:
        return self.parts[0].items() if len(self.parts) == 1 else super().items()

    def __getitem__(self, name: str) -> Entry:
        return self.parts[_place(name, len(self.parts))][name]

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(self.parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts))


def _place(name: str, parts: int) -> int:
    """Return the part that contains a name. It does not use `hash`, which differs between processes."""
    return zlib.crc32(os.fsencode(name)) % parts if parts > 1 else 0


def _is_special(entry: Entry) -> bool:
    return not is_kept(entry) if isinstance(entry, File) else not isinstance(entry, Link)
