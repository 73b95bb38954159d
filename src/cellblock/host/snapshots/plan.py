"""Computes reversible steps from a workspace's current content to a snapshot's content."""

from __future__ import annotations

import errno
import stat
from typing import Literal, NamedTuple, TypeGuard

from cellblock.errors import SnapshotError
from cellblock.host.snapshots.entries import Entry, Folder, LeftOut, Trashed
from cellblock.host.snapshots.file import File, Link, Owner, is_kept
from cellblock.host.snapshots.tree import same

_ENTER = stat.S_IWUSR | stat.S_IXUSR


class Step(NamedTuple):
    """One step.

    Attributes:
        do: ``remove`` moves something to the staging folder, ``place`` moves something from there to its path, ``make``
            creates a folder, and ``mode`` sets a folder's permissions.
        path: The path.
        number: The number in the staging folder.
        was: The expected `identity` of what is to be removed. If it differs, the step is not done.
        mode: New permissions of a folder.
        before: Current permissions of a folder.
        owner: Owner of a new folder.
    """

    do: Literal["remove", "place", "make", "mode"]
    path: str
    number: int = 0
    was: tuple[int, ...] = ()
    mode: int = 0
    before: int = 0
    owner: Owner = (-1, -1)


class Plan:
    """A plan to change a workspace, or parts of it, to another state.

    Attributes:
        steps: The steps, in order.
        staged: Contents required in the staging folder before the first step, by number.
        written: Paths with new content.
        removed: Paths that are removed.
        kept: Paths not restored because snapshots exclude them.
        before: Replaced and removed entries, by path.
    """

    def __init__(self, now: Folder, target: Folder) -> None:
        """Compute the plan. Paths that the target excludes by name are unchanged.

        Raises:
            SnapshotError: An excluded path is in the way.
        """
        self.staged: dict[int, File | Link | Trashed] = {}
        self.written: list[str] = []
        self.removed: list[str] = []
        self.kept: list[str] = []
        self.before: dict[str, Entry] = {}
        self._opened: list[Step] = []
        self._moves: list[Step] = []
        self._modes: list[Step] = []
        self._number = 0
        self._folder("", now, target)
        # Folders are opened top-down and closed bottom-up, because no entry is accessible in a closed one.
        self.steps = [*sorted(self._opened, key=_path), *self._moves, *sorted(self._modes, key=_path, reverse=True)]

    def _folder(self, path: str, now: Folder, target: Folder) -> None:
        """Plan one existing folder."""
        if now is target:
            return
        begun = len(self._moves)
        for name in sorted(now.entries.keys() | target.entries.keys()):
            where = f"{path}/{name}" if path else name
            old, new = now.entries.get(name), target.entries.get(name)
            if isinstance(old, Folder) and isinstance(new, Folder):
                self._folder(where, old, new)
            elif new is None:
                if old is not None and target.complete:
                    self._remove(where, old)
            elif not _is_held(new):
                if isinstance(new, LeftOut) and isinstance(old, File | Link):
                    self.kept.append(where)
            elif old is None:
                self._put(where, new)
            elif not same(old, new):
                self._clear(where, old)
                self._put(where, new)
        if path:
            self._set_modes(path, now.mode, target.mode, moves=len(self._moves) > begun)

    def _set_modes(self, path: str, now: int, wanted: int, *, moves: bool) -> None:
        if moves and now & _ENTER != _ENTER:
            self._opened.append(Step("mode", path, mode=now | stat.S_IRWXU, before=now))
            now |= stat.S_IRWXU
        if now != wanted:
            self._modes.append(Step("mode", path, mode=wanted, before=now))

    def _remove(self, path: str, entry: Entry) -> None:
        """Remove an unwanted entry, except excluded paths and those that must not be removed."""
        if _goes(entry):
            self._move_away(path, entry)
            self.removed.append(path)
        elif isinstance(entry, Folder):
            for name, inner in entry.entries.items():
                self._remove(f"{path}/{name}", inner)
            self._set_modes(path, entry.mode, entry.mode, moves=True)
        elif isinstance(entry, LeftOut):
            self.kept.append(path)

    def _clear(self, path: str, entry: Entry) -> None:
        """Make room for another entry."""
        folder = isinstance(entry, Folder) or (isinstance(entry, LeftOut) and entry.folder)
        if folder and not _goes(entry):
            raise in_the_way(path, "a folder of that name contains files that snapshots exclude")
        self._move_away(path, entry)

    def _move_away(self, path: str, entry: Entry) -> None:
        self.before[path] = entry
        if isinstance(entry, Folder) and entry.mode & _ENTER != _ENTER:  # its entry ".." lies in the folder itself
            self._opened.append(Step("mode", path, mode=entry.mode | stat.S_IRWXU, before=entry.mode))
        self._number += 1
        self._moves.append(Step("remove", path, self._number))

    def _put(self, path: str, entry: File | Link | Folder | Trashed) -> None:
        if isinstance(entry, Folder):
            self._moves.append(Step("make", path, owner=entry.owner))
            for name, inner in entry.entries.items():
                if _is_held(inner):
                    self._put(f"{path}/{name}", inner)
            self._modes.append(Step("mode", path, mode=entry.mode, before=stat.S_IRWXU))
            return
        self._number += 1
        self.staged[self._number] = entry
        self._moves.append(Step("place", path, self._number))
        self.written.append(path)


def _goes(entry: Entry) -> bool:
    """Return whether an entry can be removed as a whole."""
    if isinstance(entry, Folder) and (entry.entries or not entry.complete):
        return entry.complete and all(map(_goes, entry.entries.values()))
    return not isinstance(entry, LeftOut) or entry.ours


def in_the_way(path: str, what: str) -> SnapshotError:
    """Return the error for a path that cannot be restored because another entry is in the way."""
    message = f"cannot restore {path[:200]!r}: {what}; move it away, then try again. Nothing was changed"
    return SnapshotError(message, path=path, errno=errno.ENOTEMPTY)


def _is_held(entry: Entry) -> TypeGuard[File | Link | Folder | Trashed]:
    """Return whether an entry can be restored. Otherwise it is left unchanged."""
    return not isinstance(entry, LeftOut) and (not isinstance(entry, File) or is_kept(entry))


def _path(step: Step) -> str:
    return step.path
