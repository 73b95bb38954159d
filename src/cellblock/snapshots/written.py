"""What a store writes beside the content of files, so that the next process can read snapshots back: folders, each once.

A folder that several trees share is written once, and trees mostly share all but a few. A snapshot itself is so small that
whoever keeps it writes it down (`Description`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import re
from collections.abc import Iterable
from typing import NamedTuple

from cellblock.snapshots import content
from cellblock.snapshots.beneath import create_file, open_file
from cellblock.snapshots.entries import Entries
from cellblock.snapshots.file import File, is_kept, kept_as
from cellblock.snapshots.tree import Folder, total

_NAME = re.compile(r"folder-([0-9]+)")


class Description(NamedTuple):
    """A snapshot, for the next process: the number of its folder."""

    root: int


class Written:
    """The folders that are written in the directory of a store. The store holds its lock for each call."""

    def __init__(self, directory: int) -> None:
        """Begin with none.

        Args:
            directory: The store's directory, opened. Only processes of this user write there.
        """
        self._directory = directory
        self._numbers = itertools.count(1)
        self._known: dict[int, int] = {}
        """The id of a folder → its number"""

    def number(self, folder: Folder) -> int:
        """Return the number of a folder that was written."""
        return self._known[id(folder)]

    def write(self, folders: Iterable[Folder]) -> None:
        """Write folders, of which each comes after those that are in it. If one cannot be written, none is.

        Raises:
            OSError: As the system says.
        """
        made: list[Folder] = []
        try:
            for folder in folders:
                if id(folder) in self._known:  # it was read
                    continue
                inner = {name: self.number(entry) for name, entry in folder.entries.items() if type(entry) is Folder}
                others = {name: entry for name, entry in folder.entries.items() if type(entry) is not Folder}
                number = next(self._numbers)
                file = create_file(f"folder-{number}", self._directory)
                self._known[id(folder)] = number
                made.append(folder)
                try:
                    content.write(file, pickle.dumps((folder.mode, folder.owner, folder.complete, inner, others), 5))
                finally:
                    os.close(file)
        except BaseException:  # also an interrupt: a folder that is not whole is of no use
            for folder in made:
                self.forget(folder)
            raise

    def forget(self, folder: Folder) -> None:
        """Remove a folder that nobody needs any longer."""
        with contextlib.suppress(OSError):  # it is removed with the store
            os.unlink(f"folder-{self._known.pop(id(folder))}", dir_fd=self._directory)

    def read(self, numbers: Iterable[int]) -> dict[int, Folder | None]:
        """Read folders that another process has written; call this before anything else.

        Args:
            numbers: Their numbers.

        Returns:
            Each with all that is in it; None for one that is not there, or of which some content is not.
        """
        there = {*os.listdir(self._directory)}
        self._numbers = itertools.count(
            max((int(found[1]) for name in there if (found := _NAME.fullmatch(name))), default=0) + 1
        )
        read: dict[int, Folder | None] = {}
        return {number: self._read(number, there, read) for number in {*numbers}}

    def _read(self, number: int, there: set[str], read: dict[int, Folder | None]) -> Folder | None:
        if number not in read:
            read[number] = folder = self._read_whole(number, there, read)
            if folder is not None:
                self._known[id(folder)] = number
        return read[number]

    def _read_whole(self, number: int, there: set[str], read: dict[int, Folder | None]) -> Folder | None:
        try:
            with os.fdopen(open_file(f"folder-{number}", self._directory), "rb") as file:
                mode, owner, complete, inner, entries = pickle.load(file)  # noqa: S301  # only processes of this user write it
        except (OSError, EOFError, pickle.UnpicklingError):
            return None
        for entry in entries.values():
            if type(entry) is File and is_kept(entry) and kept_as(entry).hex() not in there:
                return None
        for name, one in inner.items():
            if (folder := self._read(one, there, read)) is None:
                return None
            entries[name] = folder
        return Folder(mode, owner, Entries(entries), complete, total(entries.values(), complete=complete))

    def keep_only(self, folders: Iterable[Folder]) -> None:
        """Forget all folders but some: others are gone, and something else may have their ids."""
        needed = {id(folder) for folder in folders}
        self._known = {key: number for key, number in self._known.items() if key in needed}

    def names(self) -> set[str]:
        """Return the names of their files."""
        return {f"folder-{number}" for number in self._known.values()}
