"""Reports file changes as the session's user sees them, for `files_helper`.

It is imported on demand: it uses ctypes, and most sessions watch nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
from collections.abc import Callable, Iterator
from typing import NoReturn

MODIFY, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF, OVERFLOW, IGNORED, ONLYDIR, ISDIR = 0x400, 0x800, 0x4000, 0x8000, 0x0100_0000, 0x4000_0000
_MASK = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF | ONLYDIR
_KINDS = (
    (CREATE | MOVED_TO, "created"),
    (MODIFY, "modified"),
    (DELETE, "removed"),
    (MOVED_FROM, "renamed"),
    (ATTRIB, "attributes"),
)
_EVENT = struct.Struct("=iIII")
_BUFFER = 1 << 16

Change = tuple[str, str]
"""The kind of a change, and the path relative to the watched folder."""


class Watch:
    """A watch of a folder, optionally with subfolders. Links are not followed, except the path itself."""

    def __init__(self, path: str, *, recursive: bool) -> None:
        """Start to watch.

        Raises:
            OSError: The path does not exist, is not a folder, or cannot be watched.
        """
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._recursive = recursive
        self._top = path
        self._names: dict[int, str] = {}
        """watch → path of the folder, relative to the watched one"""
        self.descriptor = self._call("inotify_init1", os.O_CLOEXEC | os.O_NONBLOCK)
        self._add("")
        if recursive:
            for _ in self._below(""):
                pass

    def read(self) -> list[Change]:
        """Return the changes.

        Raises:
            OSError: Some changes were lost, or the folder was removed.
        """
        data = os.read(self.descriptor, _BUFFER)
        found: list[Change] = []
        while data:
            number, mask, _, size = _EVENT.unpack_from(data)
            name = os.fsdecode(data[_EVENT.size : _EVENT.size + size].rstrip(b"\0"))
            data = data[_EVENT.size + size :]
            if mask & OVERFLOW:
                raise OSError(errno.EOVERFLOW, "the queue of changes overflowed, and some were missed")
            found += self._changes(number, mask, name)
        return found

    def _changes(self, number: int, mask: int, name: str) -> Iterator[Change]:
        folder = self._names.get(number)
        if folder is None:
            return
        if mask & (DELETE_SELF | MOVE_SELF | IGNORED):
            if not folder:
                raise OSError(errno.ENOENT, "the watched folder was removed or renamed")
            if not mask & MOVE_SELF:  # a renamed one may still be in the watched folder: its new name is watched, too
                self._names.pop(number, None)
            return
        path = os.path.join(folder, name)
        if not name:
            return  # its own attributes: its parent's watch reports them
        yield next(kind for bits, kind in _KINDS if mask & bits), path
        if self._recursive and mask & ISDIR and mask & (CREATE | MOVED_TO):
            try:
                self._add(path)
            except OSError:
                return  # it was removed
            yield from self._below(path)

    def _below(self, folder: str) -> Iterator[Change]:
        """Watch the subfolders of a folder. Yield their entries, which may have been created before the watch."""
        try:
            with os.scandir(os.path.join(self._top, folder)) as entries:
                names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError:
            return
        for name, is_folder in names:
            path = os.path.join(folder, name)
            yield "created", path
            if is_folder:
                try:
                    self._add(path)
                except FileNotFoundError:
                    continue
                yield from self._below(path)

    def _add(self, folder: str) -> None:
        path = os.fsencode(os.path.join(self._top, folder) if folder else self._top)
        number = self._call("inotify_add_watch", self.descriptor, path, ctypes.c_uint32(_MASK))
        self._names[number] = folder

    def _call(self, name: str, *arguments: object) -> int:
        result: int = getattr(self._libc, name)(*arguments)
        if result < 0:
            code = ctypes.get_errno()
            why = "there are too many files to watch" if code == errno.ENOSPC else os.strerror(code)
            raise OSError(code, why)
        return result


def serve(watch: Watch, send: Callable[[list[Change]], None]) -> NoReturn:
    """Send changes until standard input ends."""
    waiting = select.poll()
    waiting.register(0, select.POLLIN)
    waiting.register(watch.descriptor, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in waiting.poll()]
        if 0 in ready and not os.read(0, 1):
            os._exit(0)
        if watch.descriptor in ready and (changes := watch.read()):
            send(changes)
