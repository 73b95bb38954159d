"""States of named sessions: checkpoints, undo, forks, and saved sessions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cellblock.common.urls import is_url
from cellblock.fronts.functions.connection import ask
from cellblock.operations.checkpoints import (
    Adopt,
    Checkpoints,
    Diff,
    DropCheckpoint,
    MakeCheckpoint,
    Redo,
    Restore,
    RestoreTrash,
    Trash,
    Undo,
    VersionsOfFile,
)
from cellblock.operations.clones import CloneApply, CloneDiff, CloneFetch
from cellblock.operations.data import checkpoint_of, milliseconds, session_of
from cellblock.operations.saving import Export, Load, Save

if TYPE_CHECKING:
    from cellblock.model.checkpoints import (
        Changes,
        CheckpointRecord,
        FilesMode,
        FileVersions,
        StateChanges,
        TrashEntry,
        Undone,
    )
    from cellblock.model.clones import Applied, CloneChanges, Fetched
    from cellblock.model.programs import Processes
    from cellblock.model.saving import LoadReport, SaveReport
    from cellblock.model.sessions import SessionRecord


def checkpoint(kernel: SessionRecord | str, name: str = "", *, files: FilesMode = "shared") -> CheckpointRecord:
    """Create a checkpoint of a session's current state, as `Session.checkpoint` does. It lives as long as the daemon.

    Args:
        kernel: The session's record, name or id.
        name: The checkpoint's name.
        files: Whether to include the files of the workspace.

    Raises:
        NotFoundError: The session does not exist.
        CellblockError: As for `Session.checkpoint`.
    """
    return ask(MakeCheckpoint(session_of(kernel), name, files))


def checkpoints(kernel: SessionRecord | str) -> list[CheckpointRecord]:
    """Return the checkpoints of a session, oldest first.

    Raises:
        NotFoundError: The session does not exist.
    """
    return ask(Checkpoints(session_of(kernel)))


def restore(kernel: SessionRecord | str, checkpoint: CheckpointRecord | str, *, processes: Processes = "keep") -> Changes:
    """Restore a checkpoint of a session, as `Session.restore` does.

    Args:
        kernel: The session's record, name or id.
        checkpoint: The checkpoint, its id or its name.
        processes: Whether programs outside the kernel continue (``keep``), or are stopped first (``stop``).

    Returns:
        The changed files, if the checkpoint includes files.

    Raises:
        NotFoundError: The session does not exist.
        CellblockError: As for `Session.restore`.
    """
    return ask(Restore(session_of(kernel), checkpoint_of(checkpoint), processes)).changes


def drop_checkpoint(kernel: SessionRecord | str, checkpoint: CheckpointRecord | str) -> None:
    """Delete a checkpoint of a session, and free its memory.

    Raises:
        NotFoundError, CheckpointError: The session or the checkpoint does not exist.
    """
    ask(DropCheckpoint(session_of(kernel), checkpoint_of(checkpoint)))


def undo(kernel: SessionRecord | str, count: int = 1, *, partial: bool = False, processes: Processes = "keep") -> Undone:
    """Undo the last cells of a session, as `Session.undo` does.

    Raises:
        NotFoundError: The session does not exist.
        CellblockError: As for `Session.undo`.
    """
    return ask(Undo(session_of(kernel), count, partial, processes))


def redo(kernel: SessionRecord | str) -> Undone:
    """Revert the last undo of a session, as `Session.redo` does.

    Raises:
        NotFoundError: The session does not exist.
        CellblockError: As for `Session.redo`.
    """
    return ask(Redo(session_of(kernel)))


def trash(kernel: SessionRecord | str) -> list[TrashEntry]:
    """Return files that undo, redo, restore and adopt replaced or removed, as `Session.trash` does.

    Raises:
        NotFoundError: The session does not exist.
        CellblockError: As for `Session.trash`.
    """
    return ask(Trash(session_of(kernel)))


def restore_trash(kernel: SessionRecord | str, path: str = "", entry: str = "") -> Changes:
    """Restore files from the trash, as `Session.restore_trash` does.

    Args:
        kernel: The session's record, name or id.
        path: A file or folder, relative to the workspace; empty for everything in the entry.
        entry: The id of the entry; empty for the newest entry that contains the path.

    Raises:
        NotFoundError: The session does not exist.
        CellblockError: As for `Session.restore_trash`.
    """
    return ask(RestoreTrash(session_of(kernel), path, entry))


def clone_diff(kernel: SessionRecord | str) -> CloneChanges:
    """Return the changes in the clone of a session, as `Session.clone_diff` does.

    Raises:
        NotFoundError: The session does not exist.
        CellblockError: As for `Session.clone_diff`.
    """
    return ask(CloneDiff(session_of(kernel)))


def clone_fetch(kernel: SessionRecord | str) -> Fetched:
    """Fetch the commits of a session's clone, as `Session.clone_fetch` does.

    Raises:
        NotFoundError: The session does not exist.
        CellblockError: As for `Session.clone_fetch`.
    """
    return ask(CloneFetch(session_of(kernel)))


def clone_apply(kernel: SessionRecord | str, *, three_way: bool = False, allow_protected: bool = False) -> Applied:
    """Apply the changes of a session's clone to the working copy, as `Session.clone_apply` does.

    Raises:
        NotFoundError: The session does not exist.
        CellblockError: As for `Session.clone_apply`.
    """
    return ask(CloneApply(session_of(kernel), three_way, allow_protected))


def diff(kernel: SessionRecord | str, checkpoint: CheckpointRecord | str, until: CheckpointRecord | str = "") -> StateChanges:
    """Return the changes in a session since a checkpoint, as `Session.diff` does.

    Args:
        kernel: The session's record, name or id.
        checkpoint: The checkpoint, its id or its name.
        until: The checkpoint that ends the comparison; empty for the current state.

    Raises:
        NotFoundError: The session does not exist.
        CellblockError: As for `Session.diff`.
    """
    return ask(Diff(session_of(kernel), checkpoint_of(checkpoint), checkpoint_of(until)))


def file_versions(
    kernel: SessionRecord | str, path: str, checkpoint: CheckpointRecord | str, until: CheckpointRecord | str = ""
) -> FileVersions:
    """Return a file of the workspace at a checkpoint and at a later state, as `Session.file_versions` does.

    Args:
        kernel: The session's record, name or id.
        path: The file, relative to the workspace.
        checkpoint: The checkpoint, its id or its name.
        until: The checkpoint of the later version; empty for the current file.

    Raises:
        NotFoundError: The session does not exist.
        CellblockError: As for `Session.file_versions`.
    """
    return ask(VersionsOfFile(session_of(kernel), checkpoint_of(checkpoint), path, checkpoint_of(until)))


def fork(
    kernel: SessionRecord | str,
    names: Sequence[str],
    *,
    files: FilesMode | None = None,
    seeds: Sequence[int] | None = None,
    same_random_state: bool = False,
) -> list[SessionRecord]:
    """Create sessions from the current state of a session, as `Session.fork` does.

    Args:
        kernel: The session to fork: its record, name or id.
        names: Names of the new sessions, none of which may exist.
        files: As for `Session.fork`.
        seeds: As for `Session.fork`.
        same_random_state: As for `Session.fork`.

    Raises:
        NotFoundError: The session does not exist.
        ConflictError: A name already exists.
        CellblockError: As for `Session.fork`.
    """
    from cellblock.operations.asking import fork_of

    return ask(fork_of(kernel, names, files, seeds, same_random_state))


def adopt(kernel: SessionRecord | str, branch: SessionRecord | str) -> Changes:
    """Continue from another session's state (usually a branch) and close that session, as `Session.adopt` does.

    Args:
        kernel: The session that continues: its record, name or id.
        branch: The session whose state to take.

    Returns:
        The changed files, if the branch had files of its own.

    Raises:
        NotFoundError: A session does not exist.
        CellblockError: As for `Session.adopt`.
    """
    return ask(Adopt(session_of(kernel), session_of(branch)))


def save(
    kernel: SessionRecord | str, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float = 120.0
) -> SaveReport:
    """Save a session to a file, as `Session.save` does.

    Args:
        kernel: The session's record, name or id.
        path: The file. An existing file is replaced when the new one is complete.
        workspace: Whether to save the files of the workspace, too.
        timeout: Limit of pickling in seconds.

    Returns:
        The saved items, and the items that could not be saved.

    Raises:
        NotFoundError: The session does not exist.
        CellblockError: As for `Session.save`.
    """
    return ask(Save(session_of(kernel), _absolute(path), workspace, milliseconds(timeout)))


def load(
    kernel: SessionRecord | str, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float = 120.0
) -> LoadReport:
    """Load a saved session into a session, as `Session.load` does. The session's previous state is lost.

    Args:
        kernel: The session's record, name or id.
        path: The file.
        workspace: Whether to unpack the saved files. They replace files with the same names.
        timeout: Limit of loading in seconds.

    Returns:
        The restored items, and the items that could not be restored.

    Raises:
        NotFoundError: The session does not exist.
        CellblockError: As for `Session.load`.
    """
    return ask(Load(session_of(kernel), _absolute(path), workspace, milliseconds(timeout)))


def export(kernel: SessionRecord | str, path: str | os.PathLike[str]) -> Path:
    """Write the cells of a session and their output as a notebook (``.ipynb``) or a script (``.py``).

    Args:
        kernel: The session's record, name or id.
        path: The file, which is replaced if it exists.

    Returns:
        The file's path.

    Raises:
        NotFoundError: The session does not exist.
        CellblockError: As for `Session.export`.
    """
    asked = Export(session_of(kernel), _absolute(path))
    ask(asked)
    return Path(asked.path)


def _absolute(path: str | os.PathLike[str]) -> str:
    """Make a path absolute for the daemon, whose current directory differs; leave a URL unchanged."""
    if isinstance(path, str) and is_url(path):
        return path
    return os.path.abspath(os.path.expanduser(path))
