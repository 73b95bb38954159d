"""Checkpoints of a session, and its branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellblock.operations.base import Request

if TYPE_CHECKING:
    from cellblock.model.checkpoints import Changes, CheckpointRecord, StateChanges, Undone
    from cellblock.model.sessions import SessionRecord
    from cellblock.operations.data import Data


class MakeCheckpoint(Request["Data[CheckpointRecord]"], op="make checkpoint"):
    """Keep the state of a session.

    Attributes:
        session: The session.
        name: What to call it.
        files: ``shared`` or ``copy``.
    """

    session: str
    name: str = ""
    files: str = "shared"


class Checkpoints(Request["list[Data[CheckpointRecord]]"], op="checkpoints", repeatable=True):
    """List the checkpoints of a session, oldest first."""

    session: str


class Restore(Request[dict[str, Any]], op="restore"):
    """Go back to a checkpoint, by its id or its name. Answered by its `CheckpointRecord`, and ``changes``, a `Changes`."""

    session: str
    checkpoint: str


class DropCheckpoint(Request[bool], op="drop checkpoint"):
    """Drop a checkpoint, by its id or its name. Answered by true."""

    session: str
    checkpoint: str


class Undo(Request["Data[Undone]"], op="undo"):
    """Go back over the last cells of a session.

    Attributes:
        session: The session.
        count: How many cells.
        partial: Whether to go back as far as is possible, if they cannot be undone exactly.
    """

    session: str
    count: int = 1
    partial: bool = False


class Diff(Request["Data[StateChanges]"], op="diff", repeatable=True):
    """Compare a session with a checkpoint, by its id or its name."""

    session: str
    checkpoint: str


class Fork(Request["list[Data[SessionRecord]]"], op="fork"):
    """Make sessions of these names that begin with the state of a session.

    Attributes:
        session: The session.
        names: The names.
        files: ``shared`` or ``copy``; empty for the default, as for `Session.fork`.
        seeds: As for `Session.fork`: one for each; empty for none.
        same_random_state: As for `Session.fork`.
    """

    session: str
    names: tuple[str, ...]
    files: str = ""
    seeds: tuple[int, ...] = ()
    same_random_state: bool = False


class Adopt(Request["Data[Changes]"], op="adopt"):
    """Go on with the state of another session, a branch, which is ended by that."""

    session: str
    branch: str
