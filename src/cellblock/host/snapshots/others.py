"""Finds files that others saved between cells: undoing the cells together keeps them, as undoing them one by one does."""

from __future__ import annotations

from collections.abc import Sequence

from cellblock.host.snapshots.entries import Entries
from cellblock.host.snapshots.file import File, changed_at, is_kept, seen_as
from cellblock.host.snapshots.times import Origins, Spans, is_within
from cellblock.host.snapshots.tree import Entry, Folder, differences


def add_what_others_saved(target: Folder, between: Sequence[Folder], spans: Spans, origins: Origins) -> Folder:
    """Return the content of a snapshot with what others have saved since, before later cells changed it.

    Args:
        target: The content of the snapshot from before the cells.
        between: The contents of those between the cells, oldest first.
        spans: When these cells changed files.
        origins: What is known of files that were restored.
    """
    begun = min((began for began, _ in spans), default=0)
    before, known = target, set[bytes]()
    for after in between:
        for path, _, entry in differences(before, after):
            if not isinstance(entry, File) or not is_kept(entry):
                continue
            status = seen_as(entry)
            if status is None or status in known:  # the second: it was moved since
                continue
            origin = origins.of(status)
            changed = changed_at(status) if origin is None else origin
            if changed >= begun and not is_within(changed, spans):
                known.add(status)
                target = _with(target, path.split("/"), entry, after)
        before = after
    return target


def _with(folder: Folder, path: Sequence[str], entry: File, source: Folder) -> Folder:
    """Return a folder with another file in it.

    Args:
        folder: The folder.
        path: The file's path in it.
        entry: The file.
        source: A folder that has it there, for folders that are missing.
    """
    name, *rest = path
    new: Entry = entry
    if rest:
        model, inner = source.entries[name], folder.entries.get(name)
        assert isinstance(model, Folder)
        if inner is None:
            inner = model._replace(entries=Entries({}))
        if not isinstance(inner, Folder):
            return folder  # something else has that name there
        new = _with(inner, rest, entry, model)
    return folder._replace(entries=folder.entries.changed({name: new}))
