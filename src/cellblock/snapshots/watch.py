"""`Watch`: what may have changed in a workspace since it was looked at last."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from typing import TypeAlias

from cellblock.snapshots import inotify
from cellblock.snapshots.inotify import Inotify, LostError, UnwatchableError, check_folder, check_place, has_writer, write_out
from cellblock.snapshots.tree import Entry, Folder

__all__ = ["Dirt", "LostError", "UnwatchableError", "Watch"]

Dirt: TypeAlias = "dict[str, Dirt | None]"
"""What may have changed in a folder: names. With each, what may have changed below; None: everything."""

_FILE = inotify.OPEN | inotify.MODIFY | inotify.ATTRIB | inotify.ONESHOT
_FEW = 16 * 1024
"""Bytes of events that are read at once by who only wants to know whether there is one"""
_FOLDER = inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM | inotify.MOVED_TO | inotify.ATTRIB | inotify.ONLYDIR


class Watch:
    """Watches each file and folder that a look at a workspace finds.

    Each file is watched itself, and not only its folder: who writes to it by another name, in a folder that nobody watches,
    changes it as well. What can change without anybody being told is in doubt, and is looked at each time:

    - a file that is open for writing. What is written through memory is not told. Whoever opens it later is.
    - a file with several names, and what cannot be read.
    - what has changed so recently that the next change may have the same time.

    A look goes like this: `begin`; `folder`, `file` and `doubt` for what is found, and `gone` for what is not, or is something
    else now; `end`. If it is given up, what was to be looked at stays. Nothing is missed in between, since everything is
    watched before it is looked at.
    """

    def __init__(self, top: int, expected: int) -> None:
        """Watch nothing yet.

        Args:
            top: The workspace, opened.
            expected: How many files and folders there are, as far as is known.

        Raises:
            LostError: It cannot be watched.
        """
        check_place(top)
        self._inotify = Inotify()
        self._paths: dict[int, str] = {}
        """What is watched, by the number of the watch"""
        self._numbers: dict[str, int] = {}
        self._due: dict[str, bool] = {}
        """What is to be looked at; whether all that is below is"""
        self._doubts: set[str] = set()
        self._new: set[str] = set()
        """What is watched since the last look began"""
        self._complete = False
        """Whether everything is watched that was there at the end of the last look"""
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
        """Begin to look; return what may have changed since the last look, or None: anything.

        Raises:
            LostError: Something was missed.
        """
        for number, mask, name in self._inotify.read():
            self._take_note(number, mask, name)
        if self._poll.poll(0):
            self._complete = False
        self._due.update(dict.fromkeys(self._doubts, False))
        self._doubts.clear()
        if not self._complete:
            return None
        for path in self._new:  # the last look was given up: all this is due, and may be gone by now
            self._drop(path)
        self._new.clear()
        dirt: Dirt = {}
        for path, whole in self._due.items():
            _mark(dirt, path, whole=whole)
        return dirt

    def touched(self) -> bool:
        """Return, between two looks, whether anything was changed since the last one, as far as is told."""
        if self._inotify.unread > _FEW:
            return True
        try:
            for number, mask, name in self._inotify.read():
                self._take_note(number, mask, name)
        except LostError:
            self._complete = False
        return bool(self._due) or not self._complete

    def end(self, root: Folder) -> None:
        """Take note that all that `begin` has named was looked at.

        Args:
            root: What was found.
        """
        if not self._complete:
            found = {*_paths(root, "")}
            for path in [path for path in self._numbers if path not in found]:
                self._drop(path)
        self._due.clear()
        self._new.clear()
        self._complete = True

    def forget(self) -> None:
        """Take note that somebody else has looked, and has watched nothing of what was new."""
        self._complete = False

    def holds(self, path: str) -> bool:
        """Whether a file has not changed since it was looked at last."""
        return path in self._numbers and path not in self._due

    def folder(self, opened: int, path: str) -> None:
        """Watch a folder, before it is listed.

        Raises:
            LostError: It cannot be watched.
        """
        check_folder(opened)
        try:
            self._add(opened, path, _FOLDER)
        except OSError as error:
            raise LostError(f"a folder cannot be watched: {error}") from error

    def file(self, opened: int, path: str) -> bool:
        """Watch a file, before it is looked at. If it can change unwatched, it is in doubt.

        Args:
            opened: The file, open for reading only.
            path: Where it is.

        Returns:
            Whether it may be changing, and its times do not tell.

        Raises:
            LostError: There are too many.
        """
        try:
            # That it was opened ended the watch that it had.
            self._add(opened, path, _FILE)
        except OSError:
            self.doubt(path)
            return False
        # Now, and not earlier: who opens it from now on is noticed.
        writer = has_writer(opened)
        if writer is not False or os.fstat(opened).st_nlink > 1:
            self.doubt(path)
        return writer is True and not write_out(opened)

    def doubt(self, path: str) -> None:
        """Have something looked at the next time, whatever happens."""
        self._doubts.add(path)

    def gone(self, path: str, entry: Entry) -> None:
        """Watch something no longer that was found at a path, and all that was below."""
        self._drop(path)
        if isinstance(entry, Folder):
            for inner in _paths(entry, path):
                self._drop(inner)

    def close(self) -> None:
        """Watch nothing any more. More than once is fine."""
        self._inotify.close()
        if self._mounts >= 0:
            os.close(self._mounts)
            self._mounts = -1

    def _take_note(self, number: int, mask: int, name: str) -> None:
        path = self._paths.get(number)
        if path is None:
            return  # it was watched earlier
        if not name:
            self._due.setdefault(path, False)
            return
        path = f"{path}/{name}" if path else name
        # What happens to a folder itself is told by its own watch, too.
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
        if number is not None and self._paths.get(number) == path:  # otherwise it was moved, and is watched where it is
            del self._paths[number]
            self._inotify.remove(number)


def _paths(folder: Folder, path: str) -> Iterator[str]:
    """Yield the path of a folder, and those of all that is in it."""
    yield path
    for name, entry in folder.entries.items():
        where = f"{path}/{name}" if path else name
        if isinstance(entry, Folder):
            yield from _paths(entry, where)
        else:
            yield where


def _mark(dirt: Dirt, path: str, *, whole: bool) -> None:
    if not path:
        return  # the workspace itself: it is looked at whenever there is anything
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
