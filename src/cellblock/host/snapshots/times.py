"""Finds changes in a workspace by change times (ctime), which no program can set."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from cellblock.host.snapshots.beneath import open_folder, open_parent, opened
from cellblock.host.snapshots.entries import Folder, LeftOut
from cellblock.host.snapshots.file import File, seen, was_seen
from cellblock.host.snapshots.ignored import Ignored
from cellblock.host.snapshots.tree import lasting, status_of, unkept

Spans: TypeAlias = Sequence[tuple[int, int]]
"""Spans of time: start and end in nanoseconds of the clock that file systems use."""

_SECOND = 10**9
_FEW, _MOST_EXAMINED, _DEEPEST = 300, 1_000_000, 100
"""How many entries of what is left out are examined after a cell and by an undo, and how many folders deep."""


def _status(top: int, path: str) -> os.stat_result | None:
    try:
        with open_parent(top, path) as (parent, name):
            return os.lstat(name, dir_fd=parent)
    except OSError:
        return None


def is_within(last: int, spans: Spans) -> bool:
    """Return whether a change time is within some time intervals."""
    # Some file systems store only seconds, or even multiples of two seconds.
    coarse = 0 if last % _SECOND else 2 * _SECOND
    return any(began <= last + coarse and last <= ended for began, ended in spans)


def first_changed(top: int, spans: Spans, ignored: Ignored, most: int) -> str | None:
    """Return a workspace path last changed within these time intervals, or None.

    A removal shows in the time of its folder. `most` is the maximum number of files and folders to examine.

    Returns:
        The path; ``.`` for the workspace itself, or if there are too many entries.

    Raises:
        OSError: The workspace cannot be read.
    """
    left = most
    folders = [""]
    while folders:
        path = folders.pop()
        folder = os.dup(top) if not path else _opened(top, path)
        if folder is None:
            return path  # it has just been changed
        try:
            if is_within(os.fstat(folder).st_ctime_ns, spans):
                return path or "."
            os.lseek(folder, 0, os.SEEK_SET)  # the position is shared with the original descriptor
            names = ignored.in_folder(path)
            with os.scandir(folder) as entries:
                for entry in entries:
                    if ignored.anywhere(entry.name) or entry.name in names:
                        continue
                    left -= 1
                    if left < 0:
                        return "."
                    where = f"{path}/{entry.name}" if path else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(where)
                    elif is_within(entry.stat(follow_symlinks=False).st_ctime_ns, spans):
                        return where
        except FileNotFoundError:
            return path or "."
        finally:
            os.close(folder)
    return None


def first_unkept_changed(top: int, before: Folder, spans: Spans) -> str | None:
    """Return a file of a snapshot that cells have changed since, and whose content was not stored, or None."""
    for path, entry in unkept(before):
        info = _status(top, path)
        if is_within(_lowest_above(top, path) if info is None else info.st_ctime_ns, spans):
            return path
        if info is not None and isinstance(entry, File) and _hides_changes(entry, info):
            return path
    return None


def _hides_changes(file: File, info: os.stat_result) -> bool:
    """Return whether a file may have changed without a new status. If the status differs, others changed it."""
    return not was_seen(file, seen(info)) and status_of(file) in (None, seen(info))


def changed_left_out(top: int, path: str, entry: LeftOut, spans: Spans, few: Iterator[int] | None = None) -> str | None:
    """Return the first changed path in an entry that snapshots exclude but the session can write, or None.

    `few` limits the entries to examine to those nearest to the top, where git and package managers leave traces.

    Returns:
        The changed path, which is the entry or inside it.
    """
    info = _status(top, path)
    if info is None:
        return path if is_within(_lowest_above(top, path), spans) else None
    if not entry.folder:
        return path if not _is_special(info) and is_within(info.st_ctime_ns, spans) else None
    changes = (inner for inner, time in _everything(top, path, few) if time is None or is_within(time, spans))
    return next(changes, None)


def first_left_out_changed(top: int, before: Folder, spans: Spans) -> tuple[str, str] | None:
    """Return, by a quick check, a changed path that the session can write and snapshots exclude, and its location."""
    few = iter(range(_FEW))
    for path, entry in lasting(before):
        if (found := changed_left_out(top, path, entry, spans, few)) is not None:
            return path, found
    return None


def is_all_within(top: int, path: str, spans: Spans) -> bool:
    """Return whether a path and everything in it was last changed within some time intervals."""
    return all(time is not None and is_within(time, spans) for _, time in _everything(top, path))


def _lowest_above(top: int, path: str) -> int:
    """Return the change time of a path's lowest existing parent folder, which a removal updates."""
    while path := path.rpartition("/")[0]:
        if (info := _status(top, path)) is not None:
            return info.st_ctime_ns
    return os.fstat(top).st_ctime_ns


def _is_special(info: os.stat_result) -> bool:
    return stat.S_IFMT(info.st_mode) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


def _everything(top: int, path: str, few: Iterator[int] | None = None) -> Iterator[tuple[str, int | None]]:
    """Yield a path and everything in it, with change times; None for what cannot be examined.

    `few` limits the number of entries to examine, nearest to the top first.
    """
    info = _status(top, path)
    yield path, None if info is None else info.st_ctime_ns
    folders = deque([(path, 0)] if info is not None and stat.S_ISDIR(info.st_mode) else [])
    left = few or iter(range(_MOST_EXAMINED))
    while folders:
        folder, above = folders.popleft()
        if above >= _DEEPEST:
            yield folder, None
            continue
        try:
            with opened(top, folder) as listed, os.scandir(listed) as entries:
                for entry in entries:
                    if next(left, None) is None:
                        if few is None:
                            yield folder, None
                        return
                    where, inner = f"{folder}/{entry.name}", entry.stat(follow_symlinks=False)
                    yield where, inner.st_ctime_ns
                    if stat.S_ISDIR(inner.st_mode):
                        folders.append((where, above + 1))
        except OSError:
            yield folder, None


def _opened(top: int, path: str) -> int | None:
    try:
        with open_parent(top, path) as (parent, name):
            return open_folder(name, parent)
    except OSError:
        return None
