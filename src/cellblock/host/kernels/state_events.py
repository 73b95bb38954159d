"""Events of a session's log. `SessionState.apply` says what each changes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Container, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from cellblock.host.kernels.pairs import Instant, Pair, Pairs
from cellblock.model import HistoryEntry

Way: TypeAlias = Literal["undo", "redo", "restore", "crash", "fresh"]
"""Why a session changes to another state. The first three also restore files."""


class Numbered(NamedTuple):
    """A cell of a line.

    Attributes:
        number: Its number in this process.
        entry: Its entry in the history.
        begun_in: The state in which it began; 0 if unknown.
    """

    number: int
    entry: HistoryEntry
    begun_in: int

    def __reduce__(self) -> tuple[Any, ...]:
        """Encode the cell for the log, without its result."""
        entry = self.entry
        told = entry.status, entry.execution_count, entry.abandoned, entry.tag, entry.after
        return _read_cell, (self.number, self.begun_in, entry.code, *told)


def _read_cell(number: int, begun_in: int, code: str, status: Any, *told: Any) -> Numbered:
    count, abandoned, tag, after = told
    return Numbered(number, HistoryEntry(code, status, count, abandoned, tag=tag, after=after), begun_in)


class Saved(NamedTuple):
    """A checkpoint, as recorded. The attributes not listed are as for `Checkpoint`.

    Attributes:
        family: The number of the first kernel of the copy's init, from the launcher.
        copy: The copy's number, from that init.
        pending: As for `Copy`.
        state: The number of its state. `SessionState` sets it and everything below.
        line: The cells that led to its state.
        files: Its files, if any: a snapshot, or the description of an earlier host's.
    """

    id: str
    made: datetime
    at: float
    name: str
    automatic: bool
    execution_count: int
    family: int
    copy: int
    passing: bool
    pending: bool
    state: int = 0
    line: tuple[Numbered, ...] = ()
    files: Any = None
    without_files: str = ""

    @classmethod
    def new(cls, *told: Any) -> Saved:
        """Return a new one with the attributes from `name` to `pending`."""
        return cls(f"cp-{secrets.token_hex(4)}", datetime.now(UTC), time.monotonic(), *told)


class Began(NamedTuple):
    """The state begins to change, by a cell (possibly silent) or by tasks.

    Attributes:
        state: The number of the resulting state.
        at: When.
        position: The cell's position (`Kernel.position`); empty for tasks.
        not_undoable: Why the cell cannot be undone; empty if it can.
        looks: Whether the cell only reads variables, so that an earlier undo can still be reverted.
    """

    state: int
    at: Instant
    position: str = ""
    not_undoable: str = ""
    looks: bool = False


class Unsent(NamedTuple):
    """The last cell was not sent."""


class Ended(NamedTuple):
    """A cell ended. If its kernel died with it, it led to no state."""

    cell: Numbered
    died: bool = False
    not_undoable: str = ""


class Rested(NamedTuple):
    """A cell and its tasks have ended, so that later changes of files are not theirs; without a time, tasks keep running.

    Attributes:
        at: When.
        late: Whether this replaces an earlier end.
    """

    at: Instant | None = None
    late: bool = False


class Looked(NamedTuple):
    """The current files were examined (`Pairs.look`)."""

    files: Any
    tasks: bool = False


class Merged(NamedTuple):
    """The pairs around some states were joined."""

    states: Sequence[int]


class Forked(NamedTuple):
    """A branch began in a state of this session."""

    state: int


class Copied(NamedTuple):
    """A checkpoint of the current state was created."""

    saved: Saved


class Filed(NamedTuple):
    """The files of a checkpoint changed."""

    id: str
    files: Any
    without_files: str


class Dropped(NamedTuple):
    """A checkpoint was dropped."""

    id: str


class Placed(NamedTuple):
    """A kernel became the session's."""

    number: int


class Going(NamedTuple):
    """The session is about to change to another state.

    Attributes:
        checkpoint: The id of the target checkpoint; empty for a fresh kernel.
        way: Why.
        began: When.
        lost: Number of cells that the change loses, because their kernel died.
        since: The state from which a redo begins.
    """

    checkpoint: str
    way: Way
    began: Instant
    lost: int = 0
    since: int = 0


class Went(NamedTuple):
    """The session changed to another state. The attributes not listed are as for `Pairs.go_to`.

    Attributes:
        line: The numbers of the cells that led to it.
        cells: Those that this session does not know.
    """

    line: tuple[int, ...]
    cells: tuple[Numbered, ...]
    state: int
    at: Instant
    branch: Sequence[Pair] = ()
    tasks: bool = False


class Renewed(NamedTuple):
    """The kernel is fresh, and no cell led to its state."""

    state: int


class Abandoned(NamedTuple):
    """The states that some cells led to were left."""

    cells: Sequence[int]


class Undid(NamedTuple):
    """An undo was completed, and can be reverted.

    Attributes:
        checkpoints: The ids of the checkpoints of the undone states, oldest first. The last is of the state before the undo.
        pairs: The files before and after each change of the state, up to that state. The event owns their snapshots.
        since: The state to which the undo went.
        fresh: The state that the last fresh kernel before the undo began with.
        before: The affected files before the undo, as a snapshot; None if it changed none, or they could not be saved.
        after: The same files after it.
        trash: The trash entry of the replaced files (`Entry.described`); None if the undo changed no files.
        saved: The checkpoints. `SessionState` sets it.
    """

    checkpoints: tuple[str, ...]
    pairs: Pairs
    since: int
    fresh: int
    before: Any = None
    after: Any = None
    trash: tuple[str, str, dict[str, Any]] | None = None
    saved: tuple[Saved, ...] = ()

    @property
    def held(self) -> list[Any]:
        """All snapshots but the checkpoints', each as often as it is referenced."""
        return [*self.pairs.held, *(one for one in (self.before, self.after) if one is not None)]

    def can_continue(self, copies: Container[str]) -> bool:
        """Return whether a later host can revert the undo, if these checkpoints' copies are alive."""
        return self.saved[-1].id in copies and (self.trash is None or None not in (self.before, self.after))


class RedosDropped(NamedTuple):
    """Only a number of the last undos can still be reverted."""

    left: int


class Stayed(NamedTuple):
    """The change to another state failed."""


class Called(NamedTuple):
    """An external call was approved, at a time by `time.monotonic`."""

    at: float
    call: str


Event: TypeAlias = (
    Began
    | Unsent
    | Ended
    | Rested
    | Looked
    | Merged
    | Forked
    | Copied
    | Filed
    | Dropped
    | Placed
    | Going
    | Went
    | Renewed
    | Abandoned
    | Undid
    | RedosDropped
    | Stayed
    | Called
)
EVENTS: dict[str, type[Event]] = {event.__name__: event for event in get_args(Event)}
"""The events by name, as a log names them."""
