"""Finds what others saved between cells: undoing the cells together keeps it, as undoing them one by one does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeGuard

from cellblock.errors import SnapshotError
from cellblock.host.snapshots.entries import Entries
from cellblock.host.snapshots.file import File, Link, changed_at, is_kept
from cellblock.host.snapshots.times import Origins, Spans, is_within
from cellblock.host.snapshots.tree import Entry, Folder, status_of


def add_what_others_saved(target: Folder, between: Sequence[Folder], spans: Spans, origins: Origins) -> Folder:
    """Return the content of a snapshot with what others have saved since, before later cells changed it.

    Args:
        target: The content of the snapshot from before the cells.
        between: The contents of those between the cells, oldest first.
        spans: When these cells changed files.
        origins: What is known of what was restored.

    Raises:
        SnapshotError: Something would be a folder and something else at the same time.
    """
    begun = min((began for began, _ in spans), default=0)
    before, known = target, set[bytes]()
    for after in between:
        for path, entry in _differing(before, after):
            status = status_of(entry)
            if status is None or status in known:  # the second: it was moved since
                continue
            origin = origins.of(status)
            changed = changed_at(status) if origin is None else origin
            if changed >= begun and not is_within(changed, spans):
                known.add(status)
                target = _with(target, path, path.split("/"), entry, after)
        before = after
    return target


def _differing(before: Entry | None, after: Folder, path: str = "") -> Iterator[tuple[str, File | Link | Folder]]:
    """Yield what a folder contains that is not known to be the same as before, with the paths: a folder before its content."""
    known = before.entries if isinstance(before, Folder) else Entries({})
    for name, entry in after.entries.items():
        old, where = known.get(name), f"{path}/{name}" if path else name
        if entry is old:
            continue
        if _is_held(entry):
            yield where, entry
        if isinstance(entry, Folder):
            yield from _differing(old, entry, where)


def _is_held(entry: Entry) -> TypeGuard[File | Link | Folder]:
    return is_kept(entry) if isinstance(entry, File) else isinstance(entry, Link | Folder)


def _with(folder: Folder, whole: str, path: Sequence[str], entry: File | Link | Folder, source: Folder) -> Folder:
    """Return a folder with another file, link or empty folder in it.

    Args:
        folder: The folder.
        whole: The path in the workspace, for messages.
        path: The path in the folder.
        entry: What is to be there.
        source: A folder that has it there, for folders that are missing.

    Raises:
        SnapshotError: Something would be a folder and something else at the same time.
    """
    name, *rest = path
    new, inner = entry, folder.entries.get(name)
    if inner is not None and isinstance(inner, Folder) != bool(rest or isinstance(entry, Folder)):
        raise SnapshotError(
            f"{whole[:200]!r} was saved by somebody else between the cells, and what was there before them cannot come back"
        )
    if rest:
        model = source.entries[name]
        assert isinstance(model, Folder)
        new = _with(inner or _emptied(model), whole, rest, entry, model)
    elif isinstance(entry, Folder):
        new = _emptied(entry) if inner is None else inner._replace(status=entry.status)
    return folder._replace(entries=folder.entries.changed({name: new}))


def _emptied(folder: Folder) -> Folder:
    return folder._replace(entries=Entries({}))
