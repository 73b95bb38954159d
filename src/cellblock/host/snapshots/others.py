"""Finds what others have saved between cells: undoing the cells together keeps it, as undoing them one by one does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cellblock.errors import SnapshotError
from cellblock.host.snapshots.entries import Entries
from cellblock.host.snapshots.file import File, Link, changed_at, is_kept
from cellblock.host.snapshots.times import Origins, Spans, is_within
from cellblock.host.snapshots.tree import Entry, Folder, LeftOut, status_of

_MOST = 5_000
"""How many changes `has_others` examines: it runs in the host's loop."""


def add_what_others_saved(
    target: Folder, between: Sequence[Folder], spans: Spans, origins: Origins
) -> tuple[Folder, list[str]]:
    """Add what others have saved since a snapshot to its content, before later cells changed it.

    Args:
        target: The content of the snapshot from before the cells.
        between: The contents of those between the cells, oldest first.
        spans: When these cells changed files.
        origins: What is known of what was restored.

    Returns:
        The content; and the paths in it of what is older, but lies in a folder that others have changed: they may have moved
        it, or a cell before them.

    Raises:
        SnapshotError: Something would be a folder and something else at the same time.
    """
    before, known, along = target, dict[bytes, str](), list[str]()
    for after in between:
        moved = "/"
        for path, old, entry in _differing(before, after):
            if isinstance(entry, LeftOut) or (isinstance(entry, File) and not is_kept(entry)):
                continue  # the undo is refused if that has changed
            status = status_of(entry)
            if status is None or not _is_of_others(status, spans, origins, earlier=path.startswith(moved)):
                continue
            if isinstance(entry, Folder) and not isinstance(old, Folder) and not path.startswith(moved):
                moved = f"{path}/"  # what is in it may have come along, with times from before the cells
            if (first := known.setdefault(status, path)) == path or _has(after, first, status):  # otherwise it was moved
                target = _with(target, path, path.split("/"), entry, after)
                if not _is_of_others(status, spans, origins):
                    along.append(path)
        before = after
    return target, along


def has_others(before: Folder, after: Folder, spans: Spans, origins: Origins) -> bool:
    """Return whether others may have saved something between two snapshots; True if too much has changed to find out.

    Args:
        before: The content of the earlier one.
        after: The content of the later one.
        spans: When cells changed files.
        origins: What is known of what was restored.
    """
    for number, (_, _, entry) in enumerate(_differing(before, after)):
        if number == _MOST:
            return True
        if isinstance(entry, LeftOut):
            if entry.closed or (entry.lasting and not (entry.changed and is_within(entry.changed, spans))):
                return True
        elif (status := status_of(entry)) is None or _is_of_others(status, spans, origins):
            return True
    return False


def _is_of_others(status: bytes, spans: Spans, origins: Origins, *, earlier: bool = False) -> bool:
    """Whether something of this status was last changed since the first cell began, or also `earlier`, and by no cell."""
    origin = origins.of(status)
    changed = changed_at(status) if origin is None else origin
    begun = 0 if earlier else min((began for began, _ in spans), default=0)
    return changed >= begun and not is_within(changed, spans)


def _differing(before: Entry | None, after: Folder, path: str = "") -> Iterator[tuple[str, Entry | None, Entry]]:
    """Yield what a folder contains that is not known to be the same as before: a folder before its content.

    Yields:
        Path, the entry before, and the present one.
    """
    known = before.entries if isinstance(before, Folder) else Entries({})
    for name, entry in after.entries.beyond(known):
        where = f"{path}/{name}" if path else name
        yield where, known.get(name), entry
        if isinstance(entry, Folder):
            yield from _differing(known.get(name), entry, where)


def _has(folder: Folder, path: str, status: bytes) -> bool:
    """Whether a folder has something of this status at a path: then the same at another path is a hard link to it."""
    entry: Entry | None = folder
    for name in path.split("/"):
        entry = entry.entries.get(name) if isinstance(entry, Folder) else None
    return entry is not None and not isinstance(entry, LeftOut) and status_of(entry) == status


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
        same = {"mode": entry.mode, "owner": entry.owner, "status": entry.status}
        new = _emptied(entry) if inner is None else inner._replace(**same)
    return folder._replace(entries=folder.entries.changed({name: new}))


def _emptied(folder: Folder) -> Folder:
    return folder._replace(entries=Entries({}))
