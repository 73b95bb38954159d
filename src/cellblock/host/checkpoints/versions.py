"""A file in two states of a session: a checkpoint, and a later one or now."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from cellblock.errors import CheckpointError, FilesError, SnapshotError
from cellblock.host.files.info import FileLimits
from cellblock.host.files.paths import Workspace
from cellblock.host.snapshots.entries import Entry, Folder, LeftOut, Trashed
from cellblock.host.snapshots.file import File, Link, facts, is_kept
from cellblock.host.snapshots.store import Store
from cellblock.host.snapshots.tree import Snapshot
from cellblock.model.checkpoints import MAX_FILE_TEXT, FileVersion, FileVersions

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.checkpoints.checkpoints import Checkpoints
    from cellblock.host.files import Files

A_FOLDER = FileVersion(why="it is a folder")


async def file_versions(
    checkpoints: Checkpoints,
    files: Files,
    workspace: str,
    path: str,
    checkpoint: Checkpoint | str,
    until: Checkpoint | str | None,
) -> FileVersions:
    """Implement `Session.file_versions`."""
    first = checkpoints.find(checkpoint)
    last = None if until is None else checkpoints.find(until)
    parts = Workspace(workspace, FileLimits().max_depth, None).inner(path, "file")
    before = await _kept(checkpoints, first, parts)
    after = await (_present(files, path) if last is None else _kept(checkpoints, last, parts))
    if before is None and after is None:
        raise FilesError(f"there is no file {path!r} in either state", path=path, errno=errno.ENOENT)
    return FileVersions("/".join(parts), before, after)


async def _kept(checkpoints: Checkpoints, checkpoint: Checkpoint, parts: tuple[str, ...]) -> FileVersion | None:
    if (snapshot := checkpoint.snapshot) is None:
        why = checkpoint.without_files or "it was made without files: checkpoint(files='copy') includes them"
        raise CheckpointError(f"the checkpoint {checkpoint.name or checkpoint.id} holds no files: {why}")
    return await checkpoints.files.with_store(lambda store: version_in(store, snapshot, parts))


async def _present(files: Files, path: str) -> FileVersion | None:
    try:
        info = await files.stat(path)
        if info.kind == "directory":
            return A_FOLDER
        if info.kind != "file":
            return FileVersion(why="it is a link" if info.kind == "symlink" else "it is not a file")
        if info.size > MAX_FILE_TEXT:
            return version_of(info.size, b"")
        info, data = await files.read_part(path, 0, MAX_FILE_TEXT + 1)
    except FilesError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise
    return version_of(max(info.size, len(data)), data)


def version_in(store: Store, snapshot: Snapshot, parts: Sequence[str]) -> FileVersion | None:
    """Return the version of a path, given by its components, in a snapshot; None if it did not exist.

    Raises:
        SnapshotError: The snapshot was dropped.
    """
    store.check(snapshot)
    entry: Entry | None = snapshot.root
    for name in parts:
        if isinstance(entry, LeftOut):
            break
        if not isinstance(entry, Folder):
            return None
        entry = entry.entries.get(name)
    if entry is None:
        return None
    if isinstance(entry, LeftOut):
        return FileVersion(why=f"it was not saved: {entry.reason}")
    if isinstance(entry, Folder):
        return A_FOLDER
    if isinstance(entry, Link):
        return FileVersion(why=f"it is a link to {entry.target[:200]!r}")
    assert not isinstance(entry, Trashed)  # only plans have these
    return _version(store, entry)


def _version(store: Store, file: File) -> FileVersion:
    size = facts(file).size
    if not is_kept(file):
        return FileVersion(size, why="its content was not saved")
    if size > MAX_FILE_TEXT:
        return version_of(size, b"")
    try:
        with closing(os.fdopen(store.open(facts(file).digest), "rb")) as source:
            return version_of(size, source.read(MAX_FILE_TEXT + 1))
    except OSError as error:
        raise SnapshotError("these files no longer exist: the checkpoint was dropped") from error


def version_of(size: int, data: bytes) -> FileVersion:
    """Return a file as a version, with its text if it is a text file. A large file needs no data."""
    if size > MAX_FILE_TEXT:
        return FileVersion(size, why=f"it has more than {MAX_FILE_TEXT >> 10} KiB")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return FileVersion(size, why="it is not text in UTF-8")
    if "\0" in text:
        return FileVersion(size, why="it is not text: it has NUL characters")
    return FileVersion(size, text)
