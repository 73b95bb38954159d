"""Parts of folders that a store writes next to file contents, so that the next process can read snapshots.

Each part is written once, and trees share most parts. A tree's root is small, and the snapshot's owner stores it
(`Description`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from cellblock.common.open_flags import held
from cellblock.host.snapshots import content
from cellblock.host.snapshots.beneath import create_file, open_file
from cellblock.host.snapshots.entries import Entries, Entry, Folder, Totals
from cellblock.host.snapshots.file import File, Owner, is_kept, kept_as

Part: TypeAlias = dict[str, Entry]

_NAME = re.compile(r"part-([0-9]+)")


class Description(NamedTuple):
    """A folder for the next process: the numbers of its parts, and the other fields of `Folder`."""

    mode: int
    owner: Owner
    complete: bool
    totals: Totals
    status: bytes
    parts: tuple[int, ...]


class Written:
    """The parts written in a store's directory. The store holds its lock for each call."""

    def __init__(self, directory: int) -> None:
        """Start without parts in a store's open directory, where only processes of this user write."""
        self._directory = directory
        self._numbers = itertools.count(1)
        self._known: dict[int, int] = {}
        """The id of a part → its number."""

    def describe(self, folder: Folder) -> Description:
        """Describe a folder whose parts were written."""
        numbers = tuple(self._known[id(part)] for part in folder.entries.parts)
        return Description(folder.mode, folder.owner, folder.complete, folder.totals, folder.status, numbers)

    def write(self, parts: Iterable[Part]) -> None:
        """Write parts, each after its subfolders' parts. If one cannot be written, none is."""
        made: list[Part] = []
        try:
            for part in parts:
                if id(part) in self._known:  # it was read
                    continue
                folders = {name: self.describe(entry) for name, entry in part.items() if type(entry) is Folder}
                others = {name: entry for name, entry in part.items() if type(entry) is not Folder}
                number = next(self._numbers)
                with held(create_file(f"part-{number}", self._directory)) as file:
                    self._known[id(part)] = number
                    made.append(part)
                    content.write(file, pickle.dumps((folders, others), 5))
        except BaseException:  # includes interrupts: an incomplete part is useless
            for part in made:
                self.forget(part)
            raise

    def forget(self, part: Part) -> None:
        """Remove a part that is no longer needed."""
        with contextlib.suppress(OSError):  # it is removed with the store
            os.unlink(f"part-{self._known.pop(id(part))}", dir_fd=self._directory)

    def read(self, described: Sequence[Description]) -> list[Folder | None]:
        """Read folders that another process wrote, before any other call.

        Returns:
            Each folder with everything in it; None if a part or file content is missing.
        """
        there = {*os.listdir(self._directory)}
        self._numbers = itertools.count(
            max((int(found[1]) for name in there if (found := _NAME.fullmatch(name))), default=0) + 1
        )
        read: dict[int, Part | None] = {}
        return [self._folder(one, there, read) for one in described]

    def _folder(self, described: Description, there: set[str], read: dict[int, Part | None]) -> Folder | None:
        parts: list[Part] = []
        for number in described.parts:
            if (part := self._read(number, there, read)) is None:
                return None
            parts.append(part)
        entries = Entries.of_parts(parts)
        return Folder(described.mode, described.owner, entries, described.complete, described.totals, described.status)

    def _read(self, number: int, there: set[str], read: dict[int, Part | None]) -> Part | None:
        if number not in read:
            read[number] = part = self._read_whole(number, there, read)
            if part is not None:
                self._known[id(part)] = number
        return read[number]

    def _read_whole(self, number: int, there: set[str], read: dict[int, Part | None]) -> Part | None:
        try:
            with os.fdopen(open_file(f"part-{number}", self._directory), "rb") as file:
                folders, part = pickle.load(file)  # noqa: S301  # only processes of this user write it
        except (OSError, EOFError, pickle.UnpicklingError):
            return None
        for entry in part.values():
            if type(entry) is File and is_kept(entry) and kept_as(entry).hex() not in there:
                return None
        for name, described in folders.items():
            if (folder := self._folder(described, there, read)) is None:
                return None
            part[name] = folder
        return part  # type: ignore[no-any-return]  # it is what was written

    def keep_only(self, parts: Iterable[Part]) -> None:
        """Forget all parts but some. The others no longer exist, and their ids may be reused."""
        needed = {id(part) for part in parts}
        self._known = {key: number for key, number in self._known.items() if key in needed}

    def names(self) -> set[str]:
        """Return the names of the files."""
        return {f"part-{number}" for number in self._known.values()}
