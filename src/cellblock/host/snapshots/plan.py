"""Computes the reversible steps from the present content of a workspace to the content of a snapshot."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeGuard

from cellblock.errors import SnapshotError
from cellblock.host.snapshots.file import File, Link, Owner, is_kept
from cellblock.host.snapshots.tree import Entry, Folder, LeftOut, same

if TYPE_CHECKING:
    from cellblock.host.snapshots.times import CellChanges

_ENTER = stat.S_IWUSR | stat.S_IXUSR


class Step(NamedTuple):
    """One step.

    Attributes:
        do: ``remove`` moves something into the staging folder, ``place`` moves something from there into its place, ``make``
            creates a folder, and ``mode`` sets a folder's permissions.
        path: The path.
        number: The number of the thing in the staging folder.
        was: The `identity` of what is to be removed: if it differs by then, the step is not done.
        mode: New permissions of a folder.
        before: Present permissions of a folder.
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
    """The plan for restoring a snapshot.

    Attributes:
        steps: The steps, in order.
        staged: Contents that must be in the staging folder before the first step, by number.
        written: Paths that get new content.
        removed: Paths that are removed.
        kept: Paths that are not as in the snapshot and yet stay so, because snapshots leave them out, or because somebody else
            has changed a folder that was moved.
        again: What is there again after it as in the snapshot, by path; of what is the same now, only what was changed. Also
            folders of somebody else in which something is there again, as they are now.
    """

    def __init__(
        self,
        now: Folder,
        target: Folder,
        cells: CellChanges | None = None,
    ) -> None:
        """Compute the plan.

        Args:
            now: The files that exist now.
            target: The files that should exist.
            cells: Tells what cells have changed: only that is replaced or removed, and what is left out because of its name is
                removed only if all of it was. None: everything is replaced or removed, and nothing that is left out.

        Raises:
            SnapshotError: Something is in the way that snapshots leave out, or that somebody else has saved.
        """
        self.staged: dict[int, File | Link] = {}
        self.written: list[str] = []
        self.removed: list[str] = []
        self.kept: list[str] = []
        self.again: dict[str, File | Link | Folder] = {}
        self._opened: list[Step] = []
        self._moves: list[Step] = []
        self._modes: list[Step] = []
        self._number = 0
        self._cells = cells
        self._folder("", now, target)
        # Folders are opened top-down, and closed bottom-up: nothing is reached through a closed one.
        self.steps = [*sorted(self._opened, key=_path), *self._moves, *sorted(self._modes, key=_path, reverse=True)]

    def _folder(self, path: str, now: Folder, target: Folder) -> None:
        """Bring one existing folder to its wanted state."""
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
                if isinstance(new, LeftOut) and isinstance(old, File | Link) and self._changed(where):
                    self.kept.append(where)
            elif old is None:
                self._put(where, new)
            elif not same(old, new):
                if self._changed(where):
                    self._clear(where, old)
                    self._put(where, new)
                elif isinstance(old, Folder) or isinstance(new, Folder):
                    raise _in_the_way(where, "somebody else has put something else into its place")
            elif isinstance(new, File | Link) and old is not new and self._changed(where):
                self.again[where] = new  # it was written, with the same content
        if path:
            moves = len(self._moves) > begun
            self._set_modes(path, now.mode, target.mode, moves=moves)
            if moves or now.status != target.status:
                self.again[path] = target if self._changed(path) else now

    def _set_modes(self, path: str, now: int, wanted: int, *, moves: bool) -> None:
        if now != wanted and not self._changed(path):
            self.kept.append(path)  # somebody else may have set it
            wanted = now
        if moves and now & _ENTER != _ENTER:
            self._opened.append(Step("mode", path, mode=now | stat.S_IRWXU, before=now))
            now |= stat.S_IRWXU
        if now != wanted:
            self._modes.append(Step("mode", path, mode=wanted, before=now))

    def _remove(self, path: str, entry: Entry) -> None:
        """Remove what is not in the snapshot, except what snapshots leave out and what must not be removed."""
        if self._goes(path, entry):
            self._move_away(path, entry)
            self.removed.append(path)
        elif isinstance(entry, Folder):
            for name, inner in entry.entries.items():
                self._remove(f"{path}/{name}", inner)
            self._set_modes(path, entry.mode, entry.mode, moves=True)
        elif isinstance(entry, File | Link):
            if self._cells is not None and self._cells.moved(path):
                self.kept.append(path)
        elif not entry.ours and self._differs(path, entry):
            self.kept.append(path)

    def _goes(self, path: str, entry: Entry) -> bool:
        if isinstance(entry, Folder) and (entry.entries or not entry.complete):
            return entry.complete and all(self._goes(f"{path}/{name}", inner) for name, inner in entry.entries.items())
        if isinstance(entry, LeftOut) and not entry.ours:
            return entry.lasting and self._cells is not None and self._cells.part(path) == "all"
        return self._changed(path)

    def _differs(self, path: str, entry: LeftOut) -> bool:
        return self._changed(path) or (entry.lasting and self._cells is not None and self._cells.part(path) != "none")

    def _changed(self, path: str) -> bool:
        return self._cells is None or self._cells.changed(path)

    def _clear(self, path: str, entry: Entry) -> None:
        """Make room for something else."""
        folder = isinstance(entry, Folder) or (isinstance(entry, LeftOut) and entry.folder)
        if folder and not self._goes(path, entry):
            what = "a folder in its place holds files that snapshots leave out, or that somebody else has saved"
            raise _in_the_way(path, what)
        self._move_away(path, entry)

    def _move_away(self, path: str, entry: Entry) -> None:
        if isinstance(entry, Folder) and entry.mode & _ENTER != _ENTER:  # its entry ".." lies in the folder itself
            self._opened.append(Step("mode", path, mode=entry.mode | stat.S_IRWXU, before=entry.mode))
        self._number += 1
        self._moves.append(Step("remove", path, self._number))

    def _put(self, path: str, entry: File | Link | Folder) -> None:
        if isinstance(entry, Folder):
            self.again[path] = entry
            self._moves.append(Step("make", path, owner=entry.owner))
            for name, inner in entry.entries.items():
                if _is_held(inner):
                    self._put(f"{path}/{name}", inner)
            self._modes.append(Step("mode", path, mode=entry.mode, before=stat.S_IRWXU))
            return
        self.again[path] = entry
        self._number += 1
        self.staged[self._number] = entry
        self._moves.append(Step("place", path, self._number))
        self.written.append(path)


def _in_the_way(path: str, what: str) -> SnapshotError:
    message = f"cannot restore {path[:200]!r}: {what}; move it away, then try again. Nothing was changed"
    return SnapshotError(message, path=path, errno=errno.ENOTEMPTY)


def _is_held(entry: Entry) -> TypeGuard[File | Link | Folder]:
    """Whether a snapshot can restore an entry. Otherwise it stays as it is."""
    return not isinstance(entry, LeftOut) and (not isinstance(entry, File) or is_kept(entry))


def _path(step: Step) -> str:
    return step.path
