"""What clients ask about checkpoints of a session, and its branches."""

from __future__ import annotations

from typing import ClassVar

from cellblock.wire.record import record


@record
class MakeCheckpoint:
    """Keep the state of a session. Answered by a `CheckpointRecord`.

    Attributes:
        session: The session.
        name: What to call it.
        files: ``shared`` or ``copy``.
    """

    op: ClassVar[str] = "make checkpoint"
    session: str
    name: str = ""
    files: str = "shared"


@record
class Checkpoints:
    """List the checkpoints of a session, oldest first. Answered by a list of `CheckpointRecord`."""

    op: ClassVar[str] = "checkpoints"
    session: str


@record
class Restore:
    """Go back to a checkpoint, by its id or its name. Answered by its `CheckpointRecord`."""

    op: ClassVar[str] = "restore"
    session: str
    checkpoint: str


@record
class DropCheckpoint:
    """Drop a checkpoint, by its id or its name. Answered by true."""

    op: ClassVar[str] = "drop checkpoint"
    session: str
    checkpoint: str


@record
class Undo:
    """Go back over the last cells of a session. Answered by an `Undone`.

    Attributes:
        session: The session.
        count: How many cells.
        partial: Whether to go back as far as is possible, if they cannot be undone exactly.
    """

    op: ClassVar[str] = "undo"
    session: str
    count: int = 1
    partial: bool = False


@record
class Diff:
    """Compare a session with a checkpoint, by its id or its name. Answered by a `StateChanges`."""

    op: ClassVar[str] = "diff"
    session: str
    checkpoint: str


@record
class Fork:
    """Make sessions of these names that begin with the state of a session. Answered by their records.

    Attributes:
        session: The session.
        names: The names.
        files: ``shared`` or ``copy``; empty for the default, as for `Session.fork`.
        seeds: As for `Session.fork`: one for each; empty for none.
        same_random_state: As for `Session.fork`.
    """

    op: ClassVar[str] = "fork"
    session: str
    names: tuple[str, ...]
    files: str = ""
    seeds: tuple[int, ...] = ()
    same_random_state: bool = False


@record
class Adopt:
    """Go on with the state of another session, a branch, which is ended by that. Answered by `Changes`."""

    op: ClassVar[str] = "adopt"
    session: str
    branch: str
