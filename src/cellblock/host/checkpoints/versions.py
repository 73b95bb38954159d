"""A file in two states of a session: a checkpoint, and a later one or now."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from cellblock.errors import CheckpointError, FilesError
from cellblock.host.files.info import FileLimits
from cellblock.host.files.paths import Workspace
from cellblock.host.snapshots.versions import A_FOLDER, version_of
from cellblock.model.checkpoints import MAX_FILE_TEXT, FileVersion, FileVersions

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.checkpoints.checkpoints import Checkpoints
    from cellblock.host.files import Files


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
    if checkpoint.snapshot is None:
        why = checkpoint.without_files or "it was made without files: checkpoint(files='copy') includes them"
        raise CheckpointError(f"the checkpoint {checkpoint.name or checkpoint.id} holds no files: {why}")
    return await checkpoints.files.version(checkpoint.snapshot, parts)


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
