"""Plans an undo from the contents of a workspace before and after the undone cells.

A path that is unchanged since the cells gets its content from before them. A path that others changed later is left unchanged.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cellblock.host.snapshots.beneath import open_file, open_parent, opened
from cellblock.host.snapshots.content import TooLargeError, digest_of
from cellblock.host.snapshots.entries import Entries, Entry, Folder, LeftOut, Totals, Trashed
from cellblock.host.snapshots.file import (
    PERMISSIONS,
    UNSEEN,
    File,
    Link,
    changed_at,
    changed_by,
    facts,
    is_kept,
    is_seen,
    pack,
    seen,
    was_seen,
)
from cellblock.host.snapshots.plan import Plan, Step, in_the_way
from cellblock.host.snapshots.times import Spans, changed_left_out, is_all_within
from cellblock.host.snapshots.trash import Entry as TrashEntry
from cellblock.host.snapshots.tree import lasting, same, status_of


class Interval(NamedTuple):
    """The changes that cells made to a workspace.

    Attributes:
        before: The content before the cells.
        after: The content after them.
        spans: When they ran.
    """

    before: Folder
    after: Folder
    spans: Spans


class UndoPlan(NamedTuple):
    """The plan for an undo.

    Attributes:
        plan: The steps.
        later: Paths left unchanged because others changed them later.
        impossible: Why something cannot be restored; empty if everything can.
        back: The affected parts of the workspace before and after the undo, for a redo.
    """

    plan: Plan
    later: list[str]
    impossible: str
    back: Interval


class _Present:
    """A view of the current workspace, read path by path, with planned changes."""

    def __init__(self, top: int) -> None:
        self.now: dict[str, Entry | None] = {}
        self.wanted: dict[str, Entry | None] = {}
        self._top = top
        self._mode = self._mode_now = os.fstat(top).st_mode & PERMISSIONS
        self._listed: dict[str, list[str]] = {}
        self._inner: dict[str, set[str]] = {}
        """The planned contents of examined folders."""

    def get(self, path: str) -> Entry | None:
        """Return the planned entry at a path."""
        if path not in self.wanted:
            self.now[path] = entry = self._read(path)
            self._note(path, entry)
        return self.wanted[path]

    def _note(self, path: str, entry: Entry | None) -> None:
        self.wanted[path] = entry
        inner = self._inner.setdefault(path.rpartition("/")[0], set())
        inner.discard(path) if entry is None else inner.add(path)

    def put(self, path: str, entry: Entry | None) -> None:
        """Plan an entry at a path."""
        self.get(path)
        self._note(path, entry)

    def has_content(self, path: str) -> bool:
        """Return whether a folder will have any content."""
        if path not in self._listed:
            self._listed[path] = self._names(path) if isinstance(self.now.get(path), Folder) else []
        unknown = any(f"{path}/{name}" not in self.wanted for name in self._listed[path])
        return unknown or bool(self._inner.get(path))

    def _names(self, path: str) -> list[str]:
        try:
            with opened(self._top, path) as folder:
                return os.listdir(folder)
        except OSError:
            return [""]  # it cannot be listed, so it may have content

    def _read(self, path: str) -> Entry | None:
        try:
            with open_parent(self._top, path) as (parent, name):
                info = os.lstat(name, dir_fd=parent)
                owner = info.st_uid, info.st_gid
                if stat.S_ISDIR(info.st_mode):
                    return _folder(info.st_mode & PERMISSIONS, owner, {})
                if stat.S_ISLNK(info.st_mode):
                    return Link(os.readlink(name, dir_fd=parent), owner, seen(info))
        except OSError:
            return None
        if stat.S_ISREG(info.st_mode):
            return pack(info, b"", info.st_size, seen(info))
        return LeftOut("it is a FIFO, a socket or a device", folder=False, ours=True, changed=info.st_ctime_ns)

    def is_as(self, path: str, known: Entry | None) -> bool:
        """Return whether the planned entry at a path equals an entry of a snapshot.

        Entries that were unreadable then or now count as equal, and are moved to the trash.
        """
        entry = self.get(path)
        if entry is known or (isinstance(known, LeftOut) and known.closed):
            return True
        if isinstance(entry, Folder) and isinstance(known, Folder):
            return entry.mode == known.mode
        if isinstance(entry, LeftOut) and isinstance(known, LeftOut):
            return entry.changed == known.changed
        if not isinstance(entry, File) or not isinstance(known, File):
            return same(entry, known)
        if is_kept(entry):
            return same(entry, known)
        status = status_of(entry)
        if status is not None and was_seen(known, status):
            return True
        if not is_kept(known):
            return not is_seen(known) or status_of(known) == status
        one, two = facts(entry), facts(known)
        if (one.mode, one.mtime_ns, one.size) != (two.mode, two.mtime_ns, two.size):
            return False
        return self._digest(path, one.size) in (two.digest, None)

    def _digest(self, path: str, size: int) -> bytes | None:
        """Return the digest of a file; None if it cannot be read."""
        try:
            with opened(self._top, path, open_file) as source:
                return digest_of(source, size)[0]
        except TooLargeError:
            return b""
        except OSError:
            return None

    def undo_mode(self, before: int, after: int, later: list[str]) -> None:
        """Plan to undo a change of the workspace's own permissions, unless others changed them later."""
        if self._mode == after:
            self._mode = before
        elif self._mode != before != after:
            later.append(".")

    def plan(self, later: list[str], impossible: str) -> UndoPlan:
        """Return the plan. The arguments are as for `UndoPlan`."""
        changes = {path for path, entry in self.wanted.items() if entry is not self.now[path]}
        for path in [*changes]:
            above = path
            while above := above.rpartition("/")[0]:
                self.get(above)
                changes.add(above)
        now: dict[str, Entry] = {path: entry for path in changes if (entry := self.now[path]) is not None}
        wanted: dict[str, Entry] = {path: entry for path in changes if (entry := self.wanted[path]) is not None}
        back = Interval(tree(now)._replace(mode=self._mode_now), tree(wanted)._replace(mode=self._mode), ())
        return UndoPlan(_plan(back.before, back.after), later, impossible, back)


def tree(entries: dict[str, Entry]) -> Folder:
    """Build a folder from entries by path, which include the entries of subfolders."""
    inner: dict[str, dict[str, Entry]] = {"": {}}
    for path in sorted(entries, key=lambda path: -path.count("/")):
        entry = entries[path]
        if isinstance(entry, Folder):
            entry = entry._replace(entries=Entries(inner.pop(path, {})), complete=True)
        above, _, name = path.rpartition("/")
        inner.setdefault(above, {})[name] = entry
    return _folder(0, (0, 0), inner[""])


def _folder(mode: int, owner: tuple[int, int], entries: dict[str, Entry]) -> Folder:
    return Folder(mode, owner, Entries(entries), True, Totals(), UNSEEN)


def plan_undo(top: int, intervals: Sequence[Interval]) -> UndoPlan:
    """Plan an undo of the cells' changes, the oldest first, in an open workspace.

    Raises:
        SnapshotError: An external change is in the way of a path to restore.
    """
    present, later, impossible = _Present(top), list[str](), _left_out_changed(top, intervals)
    spans = [span for interval in intervals for span in interval.spans]
    for interval in reversed(intervals):
        want = dict[str, Entry | None]()
        for path, before, after in changed(interval.before, interval.after):
            if isinstance(before, LeftOut) and not before.closed and not before.lasting:
                continue
            if isinstance(after, LeftOut) and after.lasting and after.folder:
                if before is None and present.get(path) is not None:
                    if is_all_within(top, path, spans):
                        present.now[path] = present.wanted[path] = after._replace(ours=True)
                        want[path] = None
                    else:
                        later.append(path)
            elif isinstance(after, LeftOut) and not after.lasting and not after.closed:
                if after.too_much and present.get(path) is not None:
                    impossible = impossible or f"{path[:200]!r} cannot be removed: {after.reason}"
            elif interval.spans and _is_by_others(before, after, interval.spans):
                # Others changed it after a cell and before the next look.
                if before is not None:
                    later.append(path)
            elif present.is_as(path, after) or (present.get(path) is None and before is not None):
                want[path] = before
            elif not present.is_as(path, before):
                later.append(path)
        _apply(present, want, later)
        present.undo_mode(interval.before.mode, interval.after.mode, later)
    for path, entry in present.wanted.items():
        if entry is not present.now[path] and (why := _why_impossible(path, entry)):
            impossible = impossible or why
            present.wanted[path] = present.now[path]
    return present.plan([*dict.fromkeys(later)], impossible)


def _plan(now: Folder, wanted: Folder) -> Plan:
    plan = Plan(now, wanted)
    if now.mode != wanted.mode:
        plan.steps.append(Step("mode", ".", mode=wanted.mode, before=now.mode))
    return plan


def _is_by_others(before: Entry | None, after: Entry | None, spans: Spans) -> bool:
    """Return whether something was last changed between or after the cells.

    A change before them says nothing: the cells may have moved it with its folder.
    """
    at = _changed_at(before, after)
    return at >= min(began for began, _ in spans) and not any(began <= at <= ended for began, ended in spans)


def _changed_at(before: Entry | None, after: Entry | None) -> int:
    """Return a path's change time by the clock of its file system; 0 if unknown.

    An existing folder says nothing, because its time is the time of the last change in it.
    """
    if isinstance(after, File):
        return changed_by(after)
    return changed_at(after.status) if isinstance(after, Link) or (isinstance(after, Folder) and before is None) else 0


def _apply(present: _Present, want: dict[str, Entry | None], later: list[str]) -> None:
    for path in sorted(want, key=lambda path: -path.count("/")):
        entry, new = present.get(path), want[path]
        if entry is None or (isinstance(entry, Folder) and isinstance(new, Folder)):
            continue
        if isinstance(entry, Folder) and present.has_content(path):
            if new is not None:
                raise in_the_way(path, "another program created files in a folder of that name")
            later.append(path)
            want.pop(path)
            continue
        present.put(path, None)
    for path in sorted((path for path, new in want.items() if new is not None), key=lambda path: path.count("/")):
        new, above = want[path], path
        while above := above.rpartition("/")[0]:
            entry = present.get(above)
            if entry is not None and not isinstance(entry, Folder):
                raise in_the_way(path, f"another program replaced its folder {above[:200]!r}")
            if entry is None:
                present.put(above, _folder(0o755, (-1, -1), {}))
        if isinstance(new, Folder):
            old = present.get(path)
            new = new._replace(entries=Entries({}), owner=old.owner if isinstance(old, Folder) else new.owner)
            if isinstance(old, Folder) and old.mode == new.mode:
                continue
        present.put(path, new)


def changed(before: Entry | None, after: Entry | None, path: str = "") -> Iterator[tuple[str, Entry | None, Entry | None]]:
    """Yield the paths that differ between two contents, with both entries, each folder before its content.

    Nothing is known of a folder that was unreadable afterwards, so everything in it is yielded.
    """
    inner = [one.entries for one in (before, after) if isinstance(one, Folder)]
    names = inner[0].unlike(inner[1]) if len(inner) == 2 else inner[0]
    unknown = after if isinstance(after, LeftOut) and after.closed else None
    for name in sorted(names):
        where = f"{path}/{name}" if path else name
        old = before.entries.get(name) if isinstance(before, Folder) else None
        new = after.entries.get(name) if isinstance(after, Folder) else unknown
        if not _is_same(old, new):
            yield where, old, new
        if isinstance(old, Folder) or isinstance(new, Folder):
            yield from changed(old, new, where)


def _is_same(before: Entry | None, after: Entry | None) -> bool:
    if isinstance(before, Folder) and isinstance(after, Folder):
        return before.mode == after.mode
    if isinstance(before, LeftOut) and isinstance(after, LeftOut):
        return before == after
    if isinstance(before, File) and isinstance(after, File) and is_kept(before) != is_kept(after):
        return status_of(before) == status_of(after) is not None  # there was no time to read it once
    return same(before, after)


def _why_impossible(path: str, entry: Entry | None) -> str:
    """Return why an entry cannot be restored; empty if it can."""
    if isinstance(entry, File):
        return "" if is_kept(entry) else why_unkept(path)
    if isinstance(entry, LeftOut):
        return why_unkept(path) if entry.closed else why_left_out(path, path)
    return ""


def why_unkept(path: str) -> str:
    """Return why the change of a file without stored content prevents an undo of a cell."""
    return (
        f"{path[:200]!r} has changed, and its earlier content was not saved: it was larger than 64 MiB or unreadable, "
        "or the next cell began too soon"
    )


def _left_out_changed(top: int, intervals: Sequence[Interval]) -> str:
    """Return why an excluded folder that existed before cannot be restored; empty if it can."""
    known = set[str]()
    for number, interval in enumerate(intervals):
        spans = [span for later in intervals[number:] for span in later.spans]
        for path, entry in lasting(interval.before):
            if path not in known and (found := changed_left_out(top, path, entry, spans)) is not None:
                return why_left_out(path, found)
            known.add(path)
        known.update(path for path, _ in lasting(interval.after))  # created by the cells: removed, unless others have used it
    return ""


def why_left_out(left_out: str, path: str) -> str:
    """Return why the change of an excluded path prevents an undo of a cell."""
    if path == left_out:
        return f"{path[:200]!r} has changed or was removed, and snapshots exclude it"
    return f"{path[:200]!r} has changed, and snapshots exclude {left_out[:200]!r}"


def plan_redo(top: int, back: Interval, entry: TrashEntry) -> UndoPlan:
    """Plan a redo in an open workspace: what is unchanged since the undo gets its content from before.

    `back` are the affected parts before and after the undo. `entry` has the files that the undo replaced.

    Raises:
        SnapshotError: An external change is in the way of a path to restore.
    """
    present, later, want, impossible = _Present(top), list[str](), dict[str, Entry | None](), ""
    for path, before, after in changed(back.before, back.after):
        if not present.is_as(path, after):
            later.append(path)
        elif before is None or isinstance(before, Folder):
            want[path] = before
        elif entry.holds(path):
            want[path] = Trashed(path)
        elif isinstance(before, Link) or (isinstance(before, File) and is_kept(before)):
            want[path] = before
        else:
            impossible = impossible or f"{path[:200]!r} is no longer in the trash"
    _apply(present, want, later)
    present.undo_mode(back.before.mode, back.after.mode, later)
    return present.plan(later, impossible)


def plan_restore(top: int, entry: TrashEntry, paths: Sequence[str]) -> UndoPlan:
    """Plan a restore of files and folders from the trash. What they replace is moved there.

    Each folder precedes its content in the paths.

    Raises:
        SnapshotError: A folder is in the way of a file, or another entry in the way of a folder.
    """
    present, later, want = _Present(top), list[str](), dict[str, Entry | None]()
    for path in paths:
        with entry.open(path) as (folder, name):
            mode = os.lstat(name, dir_fd=folder).st_mode
        there = present.get(path)
        if not stat.S_ISDIR(mode):
            if isinstance(there, Folder):
                raise in_the_way(path, "a folder has its name")
            want[path] = Trashed(path)
        elif there is None:
            want[path] = _folder(mode & PERMISSIONS, (-1, -1), {})
    _apply(present, want, later)
    return present.plan(later, "")
