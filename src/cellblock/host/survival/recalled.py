"""The states of one session in a killed host's record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from cellblock.host.kernels.pairs import Instant
from cellblock.host.kernels.past import Numbered, Past

if TYPE_CHECKING:
    from cellblock.host.kernels.family import Copy
    from cellblock.host.snapshots import Snapshot, Store
    from cellblock.host.snapshots.written import Description
    from cellblock.host.survival.state_log import Record


Way: TypeAlias = Literal["undo", "restore", "crash", "fresh"]


class Going(NamedTuple):
    """A pending change to another state.

    Attributes:
        checkpoint: The id of the target checkpoint; empty for a fresh kernel.
        way: The reason. ``undo`` and ``restore`` also restore files.
        began: When it was about to begin.
    """

    checkpoint: str
    way: Way
    began: Instant


class LastCell(NamedTuple):
    """The last cell that was about to begin.

    Attributes:
        position: Its position (`Kernel.position`).
        not_undoable: Why it cannot be undone; empty if it can.
        added: Whether it has ended and is in the history.
        lost: Number of earlier cells lost when its kernel died.
        earlier: The previous one, which is the last one if this one was not sent.
    """

    position: str = ""
    not_undoable: str = ""
    added: bool = False
    lost: int = 0
    earlier: LastCell | None = None

    def after(self, word: str, *rest: Any) -> LastCell:
        """Return the last cell after a recorded event."""
        match word, rest:
            case "cell", (position, why):
                return LastCell(position, why, earlier=self._replace(earlier=None))
            case "unbegun", ():
                return self.earlier or LastCell()
            case "not undoable", (why,):
                return self._replace(not_undoable=why)
            case "lost", (count,):
                return self._replace(lost=count)
            case "add", _:
                return self._replace(added=True)
        return self


class Kept(NamedTuple):
    """The recorded form of a checkpoint (`Checkpoint`, `Moment`).

    Attributes:
        family: The number of the first kernel of the copy's init, from the launcher.
        copy: The copy's number, from that init.
        passing: As for `Checkpoint`.
        pending: As for `Copy`.
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
    passing: bool = False
    pending: bool = False


@dataclass
class KeptState:
    """A checkpoint of a killed host.

    Attributes:
        kept: Its recorded form.
        past: The cells that led to its state.
        files: The description of its files, if any.
        without_files: As for `Checkpoint`.
        copy: The copy of the kernel, once found; None if it has ended.
        snapshot: The files, once found.
    """

    kept: Kept
    past: tuple[Numbered, ...]
    files: Description | None = None
    without_files: str = ""
    copy: Copy | None = None
    snapshot: Snapshot | None = None


@dataclass
class Recalled:
    """The recorded states of one session.

    Attributes:
        past: Its history.
        states: Its checkpoints by id, oldest first.
        fresh: The initial state of its last fresh kernel; 0 if there was none.
        begun_with: The numbers of the cells before the session's start.
        kernel: The number of its kernel.
        cell: Its last cell.
        going: The unfinished change to another state, if any.
        outside: Approved external calls, with their times (`time.monotonic`).
    """

    past: Past = field(default_factory=Past)
    states: dict[str, KeptState] = field(default_factory=dict)
    fresh: int = 0
    begun_with: list[int] = field(default_factory=list)
    kernel: int = 0
    cell: LastCell = field(default_factory=LastCell)
    going: Going | None = None
    outside: list[tuple[float, str]] = field(default_factory=list)

    @classmethod
    def read(cls, records: Sequence[Record]) -> Recalled | None:
        """Read the records; None if they are incomplete."""
        if not records or records[0][0] != "base":
            return None
        recalled = cls()
        for record in records:
            recalled._take(*record)
        return recalled

    @property
    def described(self) -> list[Description]:
        """The descriptions of all file snapshots."""
        found = [state.files for state in self.states.values() if state.files is not None]
        return [*found, *dict.fromkeys(self.past.pairs.held)]

    def take_files(self, found: Iterator[Snapshot | None]) -> None:
        """Attach the snapshots found for `described`, in the same order."""
        for state in self.states.values():
            if state.files is not None:
                state.snapshot = next(found)
        known = {described: next(found) for described in dict.fromkeys(self.past.pairs.held)}
        self.past.pairs = self.past.pairs.copied(known.get)

    def drop(self, store: Store | None) -> None:
        """End all copies and drop all files, because the session is not continued."""
        for state in self.states.values():
            if state.copy is not None:
                state.copy.family.drop(state.copy)
            if state.snapshot is not None and store is not None:
                store.drop(state.snapshot)
        if store is not None:
            self.past.pairs.release = store.drop
            self.past.pairs.clear(0)

    def _take(self, word: str, *rest: Any) -> None:
        self.cell = self.cell.after(word, *rest)
        match word:
            case "base":
                self._begin_with(*rest)
            case "cell":
                self.going = None  # a cell cannot begin during the change
            case "made":
                self._make(Kept(*rest[0]), self.past.line, None, "")
            case "files":
                if (state := self.states.get(rest[0])) is not None:
                    state.files, state.without_files = rest[1:]
            case "gone":
                self.states.pop(rest[0], None)
            case "kernel":
                (self.kernel,) = rest
            case "outside":
                self.outside.append((rest[0], rest[1]))
            case "begun with":
                (self.begun_with,) = rest
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
        begun_with: list[int],
        kernel: int,
        cell: tuple[Any, ...],
        going: tuple[Any, ...] | None,
        outside: list[tuple[float, str]],
    ) -> None:
        self.past.restore(past)
        for kept, line, *files in states:
            self._make(Kept(*kept), self.past.read_line(line), *files)
        self.fresh, self.begun_with, self.kernel = fresh, begun_with, kernel
        self.going = None if going is None else Going(*going)
        self.outside = outside
        self.cell = LastCell(*cell)

    def _take_past(self, word: str, *rest: Any) -> None:
        self.past.apply(word, *rest)
        match word:
            case "anew":
                self.fresh, self.begun_with, self.going = self.past.state, [], None
            case "go to":
                self.going = None

    def _make(self, kept: Kept, past: tuple[Numbered, ...], files: Description | None, without: str) -> None:
        self.past.reserve(kept.state)
        self.states[kept.id] = KeptState(kept, past, files, without)
