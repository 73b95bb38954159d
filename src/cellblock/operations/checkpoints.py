"""Checkpoints of a session, and its branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cellblock.operations.base import Limits, Request, Route

if TYPE_CHECKING:
    from cellblock.model import checkpoints, sessions
    from cellblock.operations.data import Data

_SESSION = "/sessions/{session}"
_CHECKPOINT = f"{_SESSION}/checkpoints/{{checkpoint}}"
_Files = Annotated[str, Limits("shared", "copy")]


class MakeCheckpoint(
    Request["Data[checkpoints.CheckpointRecord]"],
    op="make checkpoint",
    route=Route("POST", f"{_SESSION}/checkpoints", "Create a checkpoint of a session's current state"),
):
    """Create a checkpoint of a session's current state, to restore later.

    Attributes:
        session: The session.
        name: The checkpoint's name.
        files: copy: the state of the files belongs to it.
    """

    session: str
    name: Annotated[str, Limits(max_length=200)] = ""
    files: _Files = "shared"


class Checkpoints(
    Request["list[Data[checkpoints.CheckpointRecord]]"],
    op="checkpoints",
    repeatable=True,
    route=Route("GET", f"{_SESSION}/checkpoints", "List checkpoints", scope="read", within="checkpoints"),
):
    """List the checkpoints of a session, oldest first."""

    session: str


class Restore(
    Request["Data[checkpoints.Restored]"],
    op="restore",
    route=Route("POST", f"{_CHECKPOINT}/restore", "Restore a checkpoint"),
):
    """Restore a checkpoint, by its id or its name. The checkpoint is not dropped.

    Attributes:
        session: The session.
        checkpoint: The checkpoint.
        processes: keep: programs beside the kernel continue. stop: they are ended first.
    """

    session: str
    checkpoint: str
    processes: Annotated[str, Limits("keep", "stop")] = "keep"


class DropCheckpoint(
    Request[bool], op="drop checkpoint", route=Route("DELETE", _CHECKPOINT, "Drop a checkpoint", within="done")
):
    """Drop a checkpoint, and free its memory."""

    session: str
    checkpoint: str


class Undo(Request["Data[checkpoints.Undone]"], op="undo", route=Route("POST", f"{_SESSION}/undo", "Undo cells")):
    """Undo the last cells of a session.

    Attributes:
        session: The session.
        count: Number of cells.
        partial: Whether to undo as far as possible if an exact undo is not possible.
        processes: As for `Restore`.
    """

    session: str
    count: Annotated[int, Limits(ge=1, le=1000)] = 1
    partial: bool = False
    processes: Annotated[str, Limits("keep", "stop")] = "keep"


class Redo(Request["Data[checkpoints.Undone]"], op="redo", route=Route("POST", f"{_SESSION}/redo", "Reverse the last undo")):
    """Reverse the last undo of a session. It works until the next cell begins.

    Attributes:
        session: The session.
    """

    session: str


class Trash(
    Request["list[Data[checkpoints.TrashEntry]]"],
    op="trash",
    repeatable=True,
    route=Route("GET", f"{_SESSION}/trash", "List the trash", scope="read", within="entries"),
):
    """List what undo, redo, restore and adopt have replaced or removed in the workspace of a session, newest first."""

    session: str


class RestoreTrash(
    Request["Data[checkpoints.Changes]"],
    op="restore trash",
    route=Route("POST", f"{_SESSION}/trash", "Restore files from the trash"),
):
    """Restore files of a session from the trash. Files that they replace are moved to the trash.

    Attributes:
        session: The session.
        path: A file or folder, relative to the workspace; empty for everything in the entry.
        entry: The id of the entry; empty for the newest entry with the path.
    """

    session: str
    path: Annotated[str, Limits(max_length=4096)] = ""
    entry: Annotated[str, Limits(max_length=100)] = ""


class Diff(
    Request["Data[checkpoints.StateChanges]"],
    op="diff",
    repeatable=True,
    route=Route("GET", f"{_CHECKPOINT}/diff", "Compare with a checkpoint"),
):
    """Return what has changed since a checkpoint: variables, and files if it has them. The kernel must be idle for a moment.

    Attributes:
        session: The session.
        checkpoint: The checkpoint.
        until: Another checkpoint to compare with; empty for the current state.
    """

    session: str
    checkpoint: str
    until: str = ""


class VersionsOfFile(
    Request["Data[checkpoints.FileVersions]"],
    op="file versions",
    repeatable=True,
    route=Route("GET", f"{_CHECKPOINT}/file-versions", "Read two versions of a file", scope="read"),
):
    """Read two versions of a file of the workspace, from a checkpoint and later: texts of up to 256 KiB.

    Attributes:
        session: The session.
        checkpoint: The checkpoint.
        path: The file, relative to the workspace.
        until: Another checkpoint for the second version; empty for the current file.
    """

    session: str
    checkpoint: str
    path: str
    until: str = ""


class Fork(
    Request["list[Data[sessions.SessionRecord]]"],
    op="fork",
    route=Route("POST", f"{_SESSION}/fork", "Make branches", within="kernels", others="make", without=("grant",)),
):
    """Create sessions that begin with another session's current state.

    Attributes:
        session: The session.
        names: Their names.
        files: copy: each branch gets the files in a directory of its own. By default as for `Session.fork`.
        seeds: Seeds of the random numbers, one for each branch; empty: new ones.
        same_random_state: Whether all branches draw the same random numbers.
        grant: As for `Create`.
    """

    session: str
    names: Annotated[tuple[str, ...], Limits(min_length=1, max_length=100)]
    files: _Files = ""
    seeds: Annotated[tuple[Annotated[int, Limits(ge=-(2**63), lt=2**63)], ...], Limits(max_length=100)] = ()
    same_random_state: bool = False
    grant: str = ""


class Adopt(
    Request["Data[checkpoints.Changes]"],
    op="adopt",
    route=Route("POST", f"{_SESSION}/adopt", "Adopt a branch", others="use"),
):
    """Continue from another session's state (usually a branch) and close that session.

    Attributes:
        session: The session.
        branch: The name or id of the other session.
    """

    session: str
    branch: Annotated[str, Limits(max_length=200)]
