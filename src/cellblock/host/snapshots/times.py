"""When things in a workspace were changed, by change times (ctime), which no program can set."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

from cellblock.host.snapshots.beneath import open_folder, open_parent
from cellblock.host.snapshots.file import File, Link, changed_at, facts, seen, was_seen
from cellblock.host.snapshots.ignored import Ignored
from cellblock.host.snapshots.tree import Folder, LeftOut, lasting, status_of, unkept

Spans: TypeAlias = Sequence[tuple[int, int]]
"""Spans of time: start and end in nanoseconds of the clock that file systems use."""

_SECOND = 10**9
_MOST_ORIGINS = 20_000
_FEW, _MOST_EXAMINED, _DEEPEST = 300, 1_000_000, 100
"""How many entries of what is left out are examined after a cell and by an undo, and how many folders deep."""


class Origins:
    """Remembers when restored files, links and folders had been changed before: by a cell, or by somebody else.

    They are known by their status (`seen`), and so only as long as nothing changes them.

    Attributes:
        last: What was added last.
        complete: Whether that is all that was restored then.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self.last: dict[bytes, int] = {}
        self.complete = False

    @property
    def known(self) -> dict[bytes, int]:
        """Everything, for `add` of another process."""
        return {**self._known}

    def of(self, status: bytes) -> int | None:
        """Return when something of this status had been changed; None if it was not restored."""
        return self._known.get(status)

    def found(self, top: int, again: Mapping[str, File | Link | Folder]) -> tuple[dict[bytes, int], bool]:
        """Return what to `add` for what is there again, and whether that is complete.

        Args:
            top: The workspace, opened.
            again: The paths, and what the snapshot has there.
        """
        found = {}
        for path, entry in again.items():
            before, info = status_of(entry), _status(top, path)
            if before is not None and info is not None:
                found[seen(info)] = self._known.get(before, changed_at(before))
        return found, len(found) == len(again) <= _MOST_ORIGINS

    def add(self, found: Mapping[bytes, int], *, complete: bool = False) -> None:
        """Remember more files, and forget the oldest if there are too many."""
        self.last, self.complete = {**found}, complete
        self._known |= found
        for status in [*self._known][: max(len(self._known) - _MOST_ORIGINS, 0)]:
            del self._known[status]


class CellChanges:
    """Tells what cells have changed, by when something was last changed: within the spans of these cells, or by others.

    What lies in a folder that was moved keeps its times. It counts as changed if a folder above it was changed within the
    spans, and if the snapshot has it at another path: this very file, by its status, or one like it that is no longer there;
    or a folder, by the time of its last change. What was restored, and not changed since, was changed when it was changed
    before: by a cell, or by somebody else.
    """

    def __init__(self, top: int, spans: Spans, roots: Sequence[Folder], origins: Origins) -> None:
        """Examine nothing yet.

        Args:
            top: The workspace, opened.
            spans: The spans.
            roots: The content of the snapshot from before the cells, and the same with what others have saved since.
            origins: What is known of what was restored.
        """
        self._top = top
        self._spans = spans
        self._roots = roots
        self._origins = origins
        self._parts: dict[str, Literal["all", "some", "none"]] = {}
        self._times: dict[str, int] = {}
        """When folders were last changed."""
        self._alike: dict[object, list[str]] = {}
        """The paths of the snapshot's files and links by likeness."""
        self._gone: dict[object, bool] = {}
        """By likeness, whether one of these is missing now."""
        self._places: dict[object, list[str]] = {}
        """The paths of what the snapshot has: of folders by the time of the last change, of files and links by that and the
        likeness, and by status (`seen`)."""

    def changed(self, path: str) -> bool:
        """Return whether a path that differs from the snapshot was last changed by the cells."""
        info = _status(self._top, path)
        if info is None or is_within(self._time(info), self._spans):
            return True
        if not any(is_within(time, self._spans) for time in self._above(path)):
            return False
        if (places := self._places_of(path, info)) is not None:
            return path not in places and any(map(self._comes_back, places))
        likeness = None if stat.S_ISDIR(info.st_mode) else _likeness(self._top, path)
        if likeness is None:
            return False
        if likeness not in self._gone:
            places = self._alike.get(likeness, ())
            gone = (where for where in places if _likeness(self._top, where) != likeness)
            self._gone[likeness] = any(map(self._comes_back, gone))
        return self._gone[likeness]

    def moved(self, path: str) -> bool:
        """Return whether a path has what the snapshot has at another one: somebody has moved a folder above it."""
        info = _status(self._top, path)
        places = None if info is None else self._places_of(path, info)
        return places is not None and path not in places

    def _comes_back(self, path: str) -> bool:
        """Return whether the snapshot's content of a path is restored: it is missing there, or the cells have changed it.

        Otherwise others have put something else there, and what was moved from there is nowhere else.
        """
        info = _status(self._top, path)
        if info is None or is_within(self._time(info), self._spans):
            return True
        places = self._places_of(path, info)
        return places is not None and path not in places and any(is_within(time, self._spans) for time in self._above(path))

    def part(self, path: str) -> Literal["all", "some", "none"]:
        """Return how much of something, and of what it contains, was last changed by the cells."""
        if path not in self._parts:
            found = {time is not None and is_within(time, self._spans) for _, time in _everything(self._top, path)}
            self._parts[path] = "some" if len(found) > 1 else "all" if True in found else "none"
        return self._parts[path]

    def _time(self, info: os.stat_result) -> int:
        origin = self._origins.of(seen(info))
        return info.st_ctime_ns if origin is None else origin

    def _above(self, path: str) -> Iterator[int]:
        """Yield when the folders above a path were changed, from the lowest on."""
        while path := path.rpartition("/")[0]:
            if path not in self._times:
                info = _status(self._top, path)
                self._times[path] = 0 if info is None else self._time(info)
            yield self._times[path]

    def _places_of(self, path: str, info: os.stat_result) -> Sequence[str] | None:
        """Return where the snapshot has what is at a path; None if it does not have it."""
        if not self._alike and not self._places:
            for root in self._roots:
                self._know("", root)
        time = self._time(info)
        if stat.S_ISDIR(info.st_mode):
            return self._places.get(time)
        if (there := self._places.get(seen(info))) is None:  # it may have been restored since, and has another status
            there = self._places.get((time, _likeness(self._top, path)))
            return None if there is None or path in there else there
        return there

    def _know(self, path: str, folder: Folder) -> None:
        for name, entry in folder.entries.items():
            where = f"{path}/{name}" if path else name
            if isinstance(entry, LeftOut):
                continue
            keys: list[object] = []
            likeness: object = None
            if (status := status_of(entry)) is not None:
                origin = self._origins.of(status)
                keys = [changed_at(status) if origin is None else origin]
            if isinstance(entry, Folder):
                self._know(where, entry)
            else:
                likeness = entry.target if isinstance(entry, Link) else (facts(entry).mtime_ns, facts(entry).size)
                self._alike.setdefault(likeness, []).append(where)
                keys = [status, *((time, likeness) for time in keys)]
            for key in keys:
                self._places.setdefault(key, []).append(where)


def _status(top: int, path: str) -> os.stat_result | None:
    try:
        with open_parent(top, path) as (parent, name):
            return os.lstat(name, dir_fd=parent)
    except OSError:
        return None


def _likeness(top: int, path: str) -> object:
    """Return what identifies a file or link after a rename: time of the last write and size, or the target of a link."""
    try:
        with open_parent(top, path) as (parent, name):
            info = os.lstat(name, dir_fd=parent)
            return os.readlink(name, dir_fd=parent) if stat.S_ISLNK(info.st_mode) else (info.st_mtime_ns, info.st_size)
    except OSError:
        return None


def is_within(last: int, spans: Spans) -> bool:
    """Whether something was last changed in one of some spans of time."""
    # Some file systems only store seconds, or even multiples of two seconds.
    coarse = 0 if last % _SECOND else 2 * _SECOND
    return any(began <= last + coarse and last <= ended for began, ended in spans)


def first_changed(top: int, spans: Spans, ignored: Ignored, most: int) -> str | None:
    """Return a path in a workspace that was last changed within one of these spans of time; None if there is none.

    A removal shows in the time of its folder.

    Args:
        top: The workspace, opened.
        spans: The spans.
        ignored: Names that do not count.
        most: Maximum number of files and folders to examine.

    Returns:
        Its path; ``.`` for the workspace itself, or if there are too many entries.

    Raises:
        OSError: The workspace cannot be read.
    """
    left = most
    folders = [""]
    while folders:
        path = folders.pop()
        opened = os.dup(top) if not path else _opened(top, path)
        if opened is None:
            return path  # it has just been changed
        try:
            if is_within(os.fstat(opened).st_ctime_ns, spans):
                return path or "."
            os.lseek(opened, 0, os.SEEK_SET)  # the position is shared with the original descriptor
            names = ignored.in_folder(path)
            with os.scandir(opened) as entries:
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
            os.close(opened)
    return None


def first_unkept_changed(top: int, kept: Sequence[tuple[Folder, Spans]]) -> str | None:
    """Return a snapshot's file whose content was not kept and which has changed since; None if there is none.

    Args:
        top: The workspace, opened.
        kept: The contents of the snapshot from before some cells, and of those between them, oldest first; each with the spans
            in which the cells after it changed files. Times advance in steps: two changes can share one. Of those between,
            only what others have saved counts: what the cells have made is removed.
    """
    for path, entry, spans, before in _not_before(kept, unkept):
        if isinstance(entry, File) and _is_of_cells(status_of(entry), before):
            continue
        info = _status(top, path)
        if is_within(_lowest_above(top, path) if info is None else info.st_ctime_ns, spans):
            return path
        if info is not None and isinstance(entry, File) and _hides_changes(entry, info):
            return path
    return None


def _hides_changes(file: File, info: os.stat_result) -> bool:
    """Whether a snapshot's file may have changed although its status says nothing; if that differs, others have changed it."""
    return not was_seen(file, seen(info)) and status_of(file) in (None, seen(info))


def first_lasting_changed(top: int, kept: Sequence[tuple[Folder, Spans]], *, quickly: bool) -> tuple[str, str] | None:
    """Return what has changed of that which a snapshot leaves out although the session can change it; None if nothing has.

    Args:
        top: The workspace, opened.
        kept: As for `first_unkept_changed`. Folders between the cells count, whoever has made them: others may have saved
            something in them.
        quickly: Whether to look only where git and package managers leave traces: near the top.

    Returns:
        The path that is left out, and the path of the change, which lies in it or is the same.
    """
    few = iter(range(_FEW))
    for path, entry, spans, before in _not_before(kept, lasting):
        if entry.changed and before and is_within(entry.changed, before):
            continue
        info = _status(top, path)
        if info is None:
            if is_within(_lowest_above(top, path), spans):
                return path, path
        elif not entry.folder:
            if not _is_special(info) and is_within(info.st_ctime_ns, spans):
                return path, path
        else:
            for inner, time in _everything(top, path, few if quickly else None):
                if time is None or is_within(time, spans):
                    return path, inner
    return None


_T = TypeVar("_T")


def _not_before(
    kept: Sequence[tuple[Folder, Spans]], find: Callable[[Folder], Iterator[tuple[str, _T]]]
) -> Iterator[tuple[str, _T, Spans, Spans]]:
    """Yield what some snapshots have that those before them do not have.

    Args:
        kept: As for `first_unkept_changed`.
        find: Yields what counts of a snapshot's content, with the paths.

    Yields:
        Path, entry, the spans of the cells after that snapshot; and, for one between the cells, the spans of all of them.
    """
    known = set[str]()
    for number, (root, spans) in enumerate(kept):
        for path, entry in find(root):
            if path not in known:  # otherwise the longer spans after the earlier one contain these
                known.add(path)
                yield path, entry, spans, kept[0][1] if number else ()


def _is_of_cells(status: bytes | None, spans: Spans) -> bool:
    """Whether something of this status was last changed in some spans, of which there are none for what was there before."""
    return bool(spans) and status is not None and is_within(changed_at(status), spans)


def _lowest_above(top: int, path: str) -> int:
    """Return when the lowest folder above a path was changed that is still there, as a removal changes it."""
    while path := path.rpartition("/")[0]:
        if (info := _status(top, path)) is not None:
            return info.st_ctime_ns
    return os.fstat(top).st_ctime_ns


def _is_special(info: os.stat_result) -> bool:
    return stat.S_IFMT(info.st_mode) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


def _everything(top: int, path: str, few: Iterator[int] | None = None) -> Iterator[tuple[str, int | None]]:
    """Yield a path and all that is in it, with the times of the last change; None for what cannot be examined.

    Args:
        top: The workspace, opened.
        path: The path.
        few: To look at a few entries only, those near the top first: ends when that is enough.
    """
    info = _status(top, path)
    yield path, None if info is None else info.st_ctime_ns
    folders = deque([(path, 0)] if info is not None and stat.S_ISDIR(info.st_mode) else [])
    left = few or iter(range(_MOST_EXAMINED))
    while folders:
        folder, above = folders.popleft()
        opened = _opened(top, folder) if above < _DEEPEST else None
        if opened is None:
            yield folder, None
            continue
        try:
            with os.scandir(opened) as entries:
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
        finally:
            os.close(opened)


def _opened(top: int, path: str) -> int | None:
    try:
        with open_parent(top, path) as (parent, name):
            return open_folder(name, parent)
    except OSError:
        return None
