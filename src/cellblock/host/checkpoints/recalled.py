"""What a host that was killed has written down of the states of one session, read again by the next host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from cellblock.host.checkpoints.past import Numbered, Past

if TYPE_CHECKING:
    from cellblock.host.checkpoints.state_log import Record
    from cellblock.host.kernels.family import Copy
    from cellblock.snapshots import Snapshot, Store
    from cellblock.snapshots.written import Description


Way: TypeAlias = Literal["undo", "restore", "crash", "fresh"]


class Going(NamedTuple):
    """What a session was about to do.

    Attributes:
        checkpoint: The id of the checkpoint that it was to go to; empty: a fresh kernel.
        way: Why: ``undo`` and ``restore`` bring files back, too.
    """

    checkpoint: str
    way: Way


class LastCell(NamedTuple):
    """The last cell that was to begin.

    Attributes:
        position: Where (`Kernel.position`).
        not_undoable: Why it cannot be undone; empty if it can.
        added: Whether it has ended, and is among those of the past.
        lost: How many earlier ones were lost when its kernel died.
    """

    position: str = ""
    not_undoable: str = ""
    added: bool = False
    lost: int = 0


class Kept(NamedTuple):
    """A checkpoint as it is written down. See `Checkpoint` and `Moment`.

    Attributes:
        family: What the launcher calls the first kernel of the copy's init.
        copy: What that init knows the copy by.
    """

    id: str
    name: str
    automatic: bool
    execution_count: int
    made: str
    at: float
    family: int
    copy: int
    state: int


@dataclass
class KeptState:
    """A checkpoint of a host that was killed.

    Attributes:
        kept: What is written down of it.
        past: The cells that have made its state.
        files: The files that it holds, if it holds some.
        without_files: See `Checkpoint`.
        copy: The copy of the kernel, once it is known; None: it has ended.
        snapshot: The files, once they are found.
    """

    kept: Kept
    past: tuple[Numbered, ...]
    files: Description | None = None
    without_files: str = ""
    copy: Copy | None = None
    snapshot: Snapshot | None = None


@dataclass
class Recalled:
    """The states of one session.

    Attributes:
        past: What it ran.
        states: Its checkpoints, by their ids, oldest first.
        fresh: The state that its last fresh kernel began with; 0 if it has had none.
        first: The files before the first cell of that kernel, if they were kept.
        first_snapshot: These files, once they are found.
        kernel: The number of its kernel.
        cell: Its last cell.
        going: What it was about to do, if that was not finished.
        since: When the past begins, in seconds since the epoch.
        outside: What was allowed outside, and when (`time.monotonic`).
    """

    past: Past = field(default_factory=Past)
    states: dict[str, KeptState] = field(default_factory=dict)
    fresh: int = 0
    first: Description | None = None
    first_snapshot: Snapshot | None = None
    kernel: int = 0
    cell: LastCell = field(default_factory=LastCell)
    going: Going | None = None
    since: float = 0.0
    outside: list[tuple[float, str]] = field(default_factory=list)

    @classmethod
    def read(cls, records: Sequence[Record]) -> Recalled | None:
        """Read what is written down; None if that is not all."""
        if not records or records[0][0] != "base":
            return None
        recalled = cls()
        for record in records:
            recalled._take(*record)
        return recalled

    @property
    def described(self) -> list[Description]:
        """All files that are kept."""
        found = [state.files for state in self.states.values()]
        return [one for one in (*found, self.first) if one is not None]

    def take_files(self, found: Iterator[Snapshot | None]) -> None:
        """Take the files that were found: those of `described`, in that order."""
        for state in self.states.values():
            if state.files is not None:
                state.snapshot = next(found)
        if self.first is not None:
            self.first_snapshot = next(found)

    def drop(self, store: Store | None) -> None:
        """End all copies, and forget all files: nobody goes on with the session."""
        for state in self.states.values():
            if state.copy is not None:
                state.copy.family.drop(state.copy)
            if state.snapshot is not None and store is not None:
                store.drop(state.snapshot)
        if self.first_snapshot is not None and store is not None:
            store.drop(self.first_snapshot)

    def _take(self, word: str, *rest: Any) -> None:
        match word:
            case "base":
                self._begin_with(*rest)
            case "cell":
                self.cell = LastCell(*rest)
            case "not undoable":
                self.cell = self.cell._replace(not_undoable=rest[0])
            case "lost":
                self.cell = self.cell._replace(lost=rest[0])
            case "made":
                self._make(Kept(*rest[0]), self.past.line, None, "")
            case "files":
                if (state := self.states.get(rest[0])) is not None:
                    state.files, state.without_files = rest[1:]
            case "gone":
                self.states.pop(rest[0], None)
            case "first":
                (self.first,) = rest
            case "kernel":
                (self.kernel,) = rest
            case "outside":
                self.outside.append((rest[0], rest[1]))
            case "going":
                self.going = Going(*rest)
            case "stayed":
                self.going = None
            case _:
                self._take_past(word, *rest)

    def _begin_with(
        self,
        past: tuple[Any, ...],
        states: list[tuple[Any, ...]],
        fresh: int,
        first: Description | None,
        kernel: int,
        cell: tuple[str, str, bool, int],
        going: tuple[str, Way] | None,
        since: float,
        outside: list[tuple[float, str]],
    ) -> None:
        self.past.restore(past)
        for kept, line, files, without in states:
            self._make(Kept(*kept), self.past.read_line(line), files, without)
        self.fresh, self.first, self.kernel, self.since = fresh, first, kernel, since
        self.going = None if going is None else Going(*going)
        self.outside = outside
        self.cell = LastCell(*cell)

    def _take_past(self, word: str, *rest: Any) -> None:
        self.past.apply(word, *rest)
        match word:
            case "anew":
                self.fresh, self.first, self.going = self.past.state, None, None
            case "go to":
                self.going = None
            case "add":
                self.cell = self.cell._replace(added=True)

    def _make(self, kept: Kept, past: tuple[Numbered, ...], files: Description | None, without: str) -> None:
        self.past.reserve(kept.state)
        self.states[kept.id] = KeptState(kept, past, files, without)
