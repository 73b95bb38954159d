"""Tracks what may have changed in a workspace since it was last examined."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from typing import TypeAlias

from cellblock.host.snapshots import inotify
from cellblock.host.snapshots.entries import Entry, Folder
from cellblock.host.snapshots.inotify import (
    Inotify,
    LostError,
    UnwatchableError,
    check_folder,
    check_place,
    has_writer,
    write_out,
)

__all__ = ["Dirt", "LostError", "UnwatchableError", "Watch"]

Dirt: TypeAlias = "dict[str, Dirt | None]"
"""Names that may have changed in a folder, each with what may have changed below it; None: everything."""

_FILE = inotify.OPEN | inotify.MODIFY | inotify.ATTRIB | inotify.ONESHOT
_FEW = 16 * 1024
"""Bytes of events to read at once when only their existence matters."""
_FOLDER = inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM | inotify.MOVED_TO | inotify.ATTRIB | inotify.ONLYDIR


class Watch:
    """A watch of each file and folder that an examination of a workspace finds.

    Files are watched themselves, not only their folders: a file can also be written under another name, in an unwatched
    folder. Some changes cause no event. Files that can change this way are in doubt, and are examined each time:

    - a file that is open for writing: writes through a mapping cause no event. A later open does.
    - a file with several names, and an unreadable file.
    - a file that changed so recently that its next change may have the same time.

    An examination has these steps: `begin`; `folder`, `file` and `doubt` for what is found, and `gone` for what is missing or
    was replaced; `end`. If it is given up, everything due stays due. No change is missed, because everything is watched before
    it is examined.
    """

    def __init__(self, top: int, expected: int) -> None:
        """Start without watches.

        Args:
            top: The open workspace.
            expected: The known number of files and folders.

        Raises:
            LostError: The workspace cannot be watched.
        """
        check_place(top)
        self._inotify = Inotify()
        self._paths: dict[int, str] = {}
        """Watched paths, by the number of the watch."""
        self._numbers: dict[str, int] = {}
        self._due: dict[str, bool] = {}
        """Paths that are due for examination; True: with everything below."""
        self._doubts: set[str] = set()
        self._new: set[str] = set()
        """Paths that are watched since the last examination began."""
        self._complete = False
        """Whether everything is watched that existed at the end of the last examination."""
        try:
            self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._inotify.close()
            raise LostError(f"what is mounted cannot be watched: {error}") from error
        if expected > self._inotify.most:
            self.close()
            raise LostError(inotify.TOO_MANY)
        self._poll = select.poll()
        self._poll.register(self._mounts, select.POLLPRI)

    def begin(self) -> Dirt | None:
        """Begin an examination. Return what may have changed since the last one; None for anything.

        Raises:
            LostError: Events were lost.
        """
        for number, mask, name in self._inotify.read():
            self._take_note(number, mask, name)
        if self._poll.poll(0):
            self._complete = False
        self._due.update(dict.fromkeys(self._doubts, False))
        self._doubts.clear()
        if not self._complete:
            return None
        for path in self._new:  # the last examination was given up: all this is due, and may no longer exist
            self._drop(path)
        self._new.clear()
        dirt: Dirt = {}
        for path, whole in self._due.items():
            _mark(dirt, path, whole=whole)
        return dirt

    def touched(self) -> bool:
        """Return, between two examinations, whether a change was reported since the last one."""
        if self._inotify.unread > _FEW:
            return True
        try:
            for number, mask, name in self._inotify.read():
                self._take_note(number, mask, name)
        except LostError:
            self._complete = False
        return bool(self._due) or not self._complete

    def end(self, root: Folder) -> None:
        """End an examination of everything that `begin` returned."""
        if not self._complete:
            found = {*_paths(root, "")}
            for path in [path for path in self._numbers if path not in found]:
                self._drop(path)
        self._due.clear()
        self._new.clear()
        self._complete = True

    def forget(self) -> None:
        """Invalidate the watches, because another examination ran without them."""
        self._complete = False

    def holds(self, path: str) -> bool:
        """Return whether a file is unchanged since it was last examined."""
        return path in self._numbers and path not in self._due

    def folder(self, opened: int, path: str) -> None:
        """Watch a folder, before it is listed.

        Raises:
            LostError: The folder cannot be watched.
        """
        check_folder(opened)
        try:
            self._add(opened, path, _FOLDER)
        except OSError as error:
            raise LostError(f"a folder cannot be watched: {error}") from error

    def file(self, opened: int, path: str) -> bool:
        """Watch a file, before it is examined. A file that can change without an event is in doubt.

        Args:
            opened: The file, open for reading only.
            path: Its path.

        Returns:
            Whether it may be changing without a change of its times.

        Raises:
            LostError: There are too many watches.
        """
        try:
            # Opening it ended its previous watch.
            self._add(opened, path, _FILE)
        except OSError:
            self.doubt(path)
            return False
        # Now, not earlier: any later open causes an event.
        writer = has_writer(opened)
        if writer is not False or os.fstat(opened).st_nlink > 1:
            self.doubt(path)
        return writer is True and not write_out(opened)

    def doubt(self, path: str) -> None:
        """Mark a path to be examined next time in any case."""
        self._doubts.add(path)

    def gone(self, path: str, entry: Entry) -> None:
        """Stop watching a path and everything in it."""
        self._drop(path)
        if isinstance(entry, Folder):
            for inner in _paths(entry, path):
                self._drop(inner)

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._inotify.close()
        if self._mounts >= 0:
            os.close(self._mounts)
            self._mounts = -1

    def _take_note(self, number: int, mask: int, name: str) -> None:
        path = self._paths.get(number)
        if path is None:
            return  # of an earlier watch
        if not name:
            self._due.setdefault(path, False)
            return
        path = f"{path}/{name}" if path else name
        # Changes of a folder itself are also reported by its own watch.
        if not (mask & inotify.ATTRIB and mask & inotify.ISDIR and path in self._numbers):
            self._due[path] = True

    def _add(self, opened: int, path: str, mask: int) -> None:
        if len(self._numbers) >= self._inotify.most:
            raise LostError(inotify.TOO_MANY)
        number = self._inotify.add(opened, mask)
        if self._numbers.get(path) != number:
            self._drop(path)
        self._numbers[path] = number
        self._paths[number] = path
        self._new.add(path)

    def _drop(self, path: str) -> None:
        number = self._numbers.pop(path, None)
        if number is not None and self._paths.get(number) == path:  # otherwise it was moved, and is watched at its new path
            del self._paths[number]
            self._inotify.remove(number)


def _paths(folder: Folder, path: str) -> Iterator[str]:
    """Yield the path of a folder, and the paths of everything in it."""
    yield path
    for name, entry in folder.entries.items():
        where = f"{path}/{name}" if path else name
        if isinstance(entry, Folder):
            yield from _paths(entry, where)
        else:
            yield where


def _mark(dirt: Dirt, path: str, *, whole: bool) -> None:
    if not path:
        return  # the workspace itself is examined whenever anything is due
    *folders, name = path.split("/")
    for folder in folders:
        inner = dirt.setdefault(folder, {})
        if inner is None:
            return
        dirt = inner
    if whole:
        dirt[name] = None
    else:
        dirt.setdefault(name, {})
