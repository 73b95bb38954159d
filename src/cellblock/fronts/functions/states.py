"""States of named sessions: checkpoints, undo, copies of sessions, and saved sessions."""

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
    from cellblock.model.programs import Processes
    from cellblock.model.saving import LoadReport, SaveReport
    from cellblock.model.sessions import SessionRecord


def checkpoint(kernel: SessionRecord | str, name: str = "", *, files: FilesMode = "shared") -> CheckpointRecord:
    """Keep the state that a session has now, as `Session.checkpoint` does. It lives as long as the session's daemon.

    Args:
        kernel: The session, its name or its id.
        name: The checkpoint's name.
        files: Whether the state of the workspace's files belongs to it.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.checkpoint`.
    """
    return ask(MakeCheckpoint(session_of(kernel), name, files))


def checkpoints(kernel: SessionRecord | str) -> list[CheckpointRecord]:
    """Return the checkpoints of a session, oldest first.

    Raises:
        NotFoundError: There is no such session.
    """
    return ask(Checkpoints(session_of(kernel)))


def restore(kernel: SessionRecord | str, checkpoint: CheckpointRecord | str, *, processes: Processes = "keep") -> Changes:
    """Go back to a checkpoint of a session, as `Session.restore` does.

    Args:
        kernel: The session, its name or its id.
        checkpoint: The checkpoint, its id or its name.
        processes: Whether programs beside the kernel go on (``keep``), or are ended before (``stop``).

    Returns:
        Which files have changed, if the checkpoint holds any.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.restore`.
    """
    return ask(Restore(session_of(kernel), checkpoint_of(checkpoint), processes)).changes


def drop_checkpoint(kernel: SessionRecord | str, checkpoint: CheckpointRecord | str) -> None:
    """Drop a checkpoint of a session, and free its memory.

    Raises:
        NotFoundError, CheckpointError: There is no such session, or checkpoint.
    """
    ask(DropCheckpoint(session_of(kernel), checkpoint_of(checkpoint)))


def undo(kernel: SessionRecord | str, count: int = 1, *, partial: bool = False, processes: Processes = "keep") -> Undone:
    """Go back over the last cells of a session, as `Session.undo` does.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.undo`.
    """
    return ask(Undo(session_of(kernel), count, partial, processes))


def redo(kernel: SessionRecord | str) -> Undone:
    """Take back the last undo of a session, as `Session.redo` does.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.redo`.
    """
    return ask(Redo(session_of(kernel)))


def trash(kernel: SessionRecord | str) -> list[TrashEntry]:
    """Return what undo, redo, restore and adopt have replaced or removed, as `Session.trash` does.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.trash`.
    """
    return ask(Trash(session_of(kernel)))


def restore_trash(kernel: SessionRecord | str, path: str = "", entry: str = "") -> Changes:
    """Copy files back from the trash, as `Session.restore_trash` does.

    Args:
        kernel: The session, its name or its id.
        path: A file or folder, relative to the workspace; empty for everything in the entry.
        entry: The id of the entry; empty for the newest one that holds the path.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.restore_trash`.
    """
    return ask(RestoreTrash(session_of(kernel), path, entry))


def diff(kernel: SessionRecord | str, checkpoint: CheckpointRecord | str, until: CheckpointRecord | str = "") -> StateChanges:
    """Return what has changed in a session since a checkpoint, as `Session.diff` does.

    Args:
        kernel: The session, its name or its id.
        checkpoint: The checkpoint, its id or its name.
        until: Another one, for the changes up to that; empty for those up to now.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.diff`.
    """
    return ask(Diff(session_of(kernel), checkpoint_of(checkpoint), checkpoint_of(until)))


def file_versions(
    kernel: SessionRecord | str, path: str, checkpoint: CheckpointRecord | str, until: CheckpointRecord | str = ""
) -> FileVersions:
    """Return a file of a session's workspace as a checkpoint holds it, and as it was later, as `Session.file_versions` does.

    Args:
        kernel: The session, its name or its id.
        path: The file, relative to the workspace.
        checkpoint: The checkpoint, its id or its name.
        until: Another one, for the file in that; empty for the file as it is now.

    Raises:
        NotFoundError: There is no such session.
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
    """Make sessions that begin with the state that another one has now, as `Session.fork` does.

    Args:
        kernel: The other session, its name or its id.
        names: Names of the new sessions. None of them may exist.
        files: As for `Session.fork`.
        seeds: As for `Session.fork`.
        same_random_state: As for `Session.fork`.

    Raises:
        NotFoundError: There is no such session.
        ConflictError: One of them exists.
        CellblockError: As for `Session.fork`.
    """
    from cellblock.operations.asking import fork_of

    return ask(fork_of(kernel, names, files, seeds, same_random_state))


def adopt(kernel: SessionRecord | str, branch: SessionRecord | str) -> Changes:
    """Go on with the state of another session, mostly a branch, which is ended by that, as `Session.adopt` does.

    Args:
        kernel: The session that goes on, its name or its id.
        branch: The other one.

    Returns:
        Which files have changed, if the branch had files of its own.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.adopt`.
    """
    return ask(Adopt(session_of(kernel), session_of(branch)))


def save(
    kernel: SessionRecord | str, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float = 120.0
) -> SaveReport:
    """Save a session to a file, as `Session.save` does.

    Args:
        kernel: The session, its name or its id.
        path: The file. If it exists it is replaced, but not before the new one is complete.
        workspace: Whether to save the files of the workspace, too.
        timeout: Seconds that pickling may take.

    Returns:
        What was saved, and what could not be.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.save`.
    """
    return ask(Save(session_of(kernel), _absolute(path), workspace, milliseconds(timeout)))


def load(
    kernel: SessionRecord | str, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float = 120.0
) -> LoadReport:
    """Continue what was saved to a file in a session, as `Session.load` does. What the session was before is gone.

    Args:
        kernel: The session, its name or its id.
        path: The file.
        workspace: Whether to unpack the files that were saved. They replace files of the same names.
        timeout: Seconds that loading may take.

    Returns:
        What was brought back, and what could not be.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.load`.
    """
    return ask(Load(session_of(kernel), _absolute(path), workspace, milliseconds(timeout)))


def export(kernel: SessionRecord | str, path: str | os.PathLike[str]) -> Path:
    """Write the cells of a session and what they showed as a notebook (``.ipynb``) or a script (``.py``).

    Args:
        kernel: The session, its name or its id.
        path: The file, which is replaced if it exists.

    Returns:
        Its path.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.export`.
    """
    asked = Export(session_of(kernel), _absolute(path))
    ask(asked)
    return Path(asked.path)


def _absolute(path: str | os.PathLike[str]) -> str:
    """Return a path as the daemon needs it, which has another current directory; a URL as it is."""
    if isinstance(path, str) and is_url(path):
        return path
    return os.path.abspath(os.path.expanduser(path))
