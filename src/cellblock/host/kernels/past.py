"""The history of a session: the cells that led to its current state, cells of abandoned states, and the last results."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, TypeAlias

from cellblock.host.kernels.pairs import Instant, Pair, Pairs
from cellblock.model import CodeExecutionResult, HistoryEntry, KeptResult

_KEPT = 1000
_MAX_FORKED = 50
_MAX_WRITTEN = 4 * 1024 * 1024
"""Characters of code that are recorded for a later host; of older cells beyond this limit, only the beginning."""

_BEGINNING = 1000

_OVERHEAD = 1000  # memory of a result in addition to its text and values

Line: TypeAlias = tuple[tuple[int, ...], tuple[tuple[Any, ...], ...]]
"""A line as recorded: the numbers of its cells, and those cells that the reader does not know."""


class _Numbers:
    """A counter, unique in one process and in later ones that continue its sessions."""

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        self.last += 1
        return self.last


_numbers = _Numbers()
_states = _Numbers()


def next_state() -> int:
    """Return a number that no state has yet, and that the next one has at least."""
    return _states.last + 1


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


class StateRecord:
    """A null recorder of one session's state changes.

    Attributes:
        recalled: Whether an earlier host recorded the session's history.
    """

    recalled = False

    def write(self, word: str, *rest: object) -> None:
        """Record an event, as `Past.apply` and `Recalled` read it."""

    def settle(self) -> None:
        """Flush all events before anything else happens."""

    def rewrite(self) -> None:
        """Record the whole state again, because more has changed than single events express."""


class Past:
    """The cells of one session, and the line of those that led to its current state.

    Attributes:
        state: The number of the session's state. Two moments share a number only if nothing ran between them, or if the
            session restored one from the other. A later state has a larger number.
        before: The state in which the running or last cell began; 0 if none has run.
        after: The label of the cell that led to that state; empty if none.
        begun: Number of cells and other actions begun, except those that only read.
        pairs: The files before and after each state change.
        record: Records events for a later host, as `apply` reads them.
    """

    def __init__(self) -> None:
        self.record = StateRecord()
        self._cells: dict[int, Numbered] = {}
        self._line: list[int] = []
        self._ended: dict[int, int] = {}
        """Cells whose state ended with their kernel, and the state of the fresh kernel that replaced it."""
        self.state = _states.next()
        self.before = 0
        self.after = ""
        self._changing = 0
        """The state that tasks of its code keep changing, if it is the present one."""
        self._earlier = 0, ""
        """The values of `before` and `after` before the last `begin`, for `unbegin`."""
        self.begun = 0
        self.pairs = Pairs(self.state)
        self._forked: list[int] = []
        """The last states that branches began in. An adopted branch continues the pairs from there."""

    @property
    def entries(self) -> list[HistoryEntry]:
        """The last cells, oldest first, including cells of abandoned states."""
        return [cell.entry for cell in self._cells.values()]

    @property
    def present(self) -> list[HistoryEntry]:
        """The last cells that led to the current state, oldest first."""
        return [self._cells[number].entry for number in self._line]

    @property
    def line(self) -> tuple[Numbered, ...]:
        """The same cells with their numbers."""
        return tuple(self._cells[number] for number in self._line)

    @property
    def changing(self) -> bool:
        """Whether tasks keep changing the current state and files between cells."""
        return self._changing == self.state

    def goes_on_changing(self) -> None:
        """Record that tasks keep changing the current state. Files that they change belong to it."""
        self._changing = self.state
        self.pairs.go_on()
        self.record.write("changing")

    def begin(self) -> None:
        """Begin a cell, possibly silent, or a state created by tasks. Each creates another state."""
        self._begin(_states.next(), Instant.before_changes())

    def _begin(self, state: int, at: Instant) -> None:
        self._earlier = self.before, self.after
        if self.changing:
            self.pairs.end(at)
        self.before, self.state = self.state, state
        self.after = self._cells[self._line[-1]].entry.tag if self._line else ""
        self.pairs.begin(state, at)
        self.record.write("begin", state, at)

    def unbegin(self) -> None:
        """Revert `begin`, because the cell was not sent."""
        self.state = self.before
        self.before, self.after = self._earlier
        self.pairs.unbegin()
        if self.changing:
            self.pairs.go_on()
        self.record.write("unbegun")

    def rest(self, state: int) -> None:
        """Record that a cell has ended, so that later changes are not its own."""
        if state == self.state != self._changing:
            self._rest(Instant.now())

    def _rest(self, at: Instant) -> None:
        self.pairs.end(at)
        self.record.write("rest", at)

    def look(self, files: Any, *, rested: bool = False) -> None:
        """Record the current files (`Pairs.look`).

        Args:
            files: The snapshot, if there is one of the current state.
            rested: Whether no task can have run since the last look.
        """
        if files is not None or self.pairs.latest is not None:
            self._look(files, self.changing and not rested)

    def _look(self, files: Any, tasks: bool) -> None:
        self.pairs.look(files, tasks=tasks)
        self.record.write("looked", files, tasks)

    def merge(self, needed: AbstractSet[int]) -> None:
        """Join pairs around states that neither the caller nor a branch needs (`Pairs.idle`)."""
        self._merge(self.pairs.idle({*needed, *self._forked}))

    def _merge(self, states: Sequence[int]) -> None:
        if states:
            self.pairs.merge(states)
            self.record.write("merged", states)

    def fork(self, state: int) -> None:
        """Record that a branch begins in a state of this session."""
        self._fork(state)
        self.record.write("forked", state)

    def _fork(self, state: int) -> None:
        self._forked = [*(one for one in self._forked if one != state and self.pairs.knows(one)), state][-_MAX_FORKED:]

    def add(self, entry: HistoryEntry, *, died: bool = False) -> None:
        """Add an ended cell. A cell that died with its kernel led to no state."""
        self._add(Numbered(_numbers.next(), entry, self.before), died)

    def _add(self, cell: Numbered, died: bool) -> None:  # in its recorded form
        self._cells[cell.number] = cell
        if not cell.entry.abandoned and not died:
            self._line.append(cell.number)
        self._forget()
        self.record.write("add", _written(cell), died)

    def replace(self, entries: Iterable[HistoryEntry]) -> None:
        """Replace the history with a loaded session's. The caller must record the whole state again."""
        self._cells.clear()
        self._line.clear()
        self._ended.clear()
        self.before = 0
        for entry in entries:
            self.add(entry)
        self.state = _states.next()
        self.pairs.clear(self.state)

    def begin_anew(self) -> None:
        """Start a new line: the kernel is fresh, and no cell led to its state."""
        self._begin_anew(_states.next())

    def _begin_anew(self, state: int) -> None:
        self.state = state
        self._ended.update(dict.fromkeys(self._line, self.state))
        self._line.clear()
        self.pairs.clear(state)
        self.record.write("anew", state)

    def go_to(
        self, line: Iterable[Numbered], state: int, began: Instant, branch: Iterable[Pair] = (), *, tasks: bool = False
    ) -> None:
        """Switch to another state.

        Args:
            line: The cells that led to that state, possibly of another session.
            state: The number of that state.
            began: When the switch began.
            branch: The pairs that led to it from the last common state, if another session's. Their snapshots change owner.
            tasks: Whether tasks run in that state.
        """
        self._go_to([*line], state, began, [*branch], tasks)

    def _go_to(self, line: Sequence[Numbered], state: int, at: Instant, branch: Sequence[Pair], tasks: bool) -> None:
        self.record.write("go to", self.written_line(line), state, at, branch, tasks)
        left = self.left_by(line)
        begun = [begun for number in left if (begun := self._cells[number].begun_in)]
        cut = min([state, *begun, *(self._last_before(pair.state) for pair in branch[:1])])
        self._abandon(left)
        self._abandon(number for number, ended in self._ended.items() if ended > state)
        self._ended = {number: ended for number, ended in self._ended.items() if ended <= state}
        for cell in line:
            self._cells[cell.number] = _marked(cell, abandoned=False)
        self._cells = dict(sorted(self._cells.items()))  # forgotten or other sessions' cells may be out of order
        self._line = [cell.number for cell in line]
        self._forget()
        if not branch and cut == state and not self.pairs.knows(state):
            cut = self._last_before(state)
        self.state = state
        self.pairs.go_to(state, cut, at, branch, tasks=tasks)

    def _last_before(self, state: int) -> int:
        """Return the last state before another one in the pairs."""
        return max((pair.state for pair in self.pairs.pairs if pair.state < state), default=min(self.pairs.origin, state))

    def come_back(self, line: Iterable[Numbered], state: int, pairs: Pairs) -> None:
        """Return to an abandoned state. The caller must record the whole state again."""
        line = [*line]
        for cell in line:
            self._cells[cell.number] = _marked(cell, abandoned=False)
        self._cells = dict(sorted(self._cells.items()))
        self._line = [cell.number for cell in line]
        self._ended = {number: ended for number, ended in self._ended.items() if ended <= state}
        self.state = state
        self.pairs.become(pairs)

    def left_by(self, line: Iterable[Numbered]) -> list[int]:
        """Return the numbers of the cells that `go_to` would abandon."""
        kept = {cell.number for cell in line}
        return [number for number in self._line if number not in kept]

    def abandon(self, numbers: Iterable[int]) -> None:
        """Mark cells whose resulting state was left as abandoned."""
        numbers = [*numbers]
        self._abandon(numbers)
        self.record.write("abandon", numbers)

    def _abandon(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if (cell := self._cells.get(number)) is not None:
                self._cells[number] = _marked(cell, abandoned=True)

    def _forget(self) -> None:
        while len(self._cells) > _KEPT:
            oldest = next(iter(self._cells))
            del self._cells[oldest]
            self._ended.pop(oldest, None)
            if self._line and self._line[0] == oldest:
                del self._line[0]

    # -- for a later host ----------------------------------------------------------------------------------------------

    def saved(self, pairs: Pairs) -> tuple[Any, ...]:
        """Return everything for `restore`, with these pairs, whose snapshots are descriptions."""
        left, cells = _MAX_WRITTEN, []
        for cell in reversed(self._cells.values()):
            left -= len(cell.entry.code)
            cells.append(_written(cell, None if left >= 0 else _BEGINNING))
        line = cells[::-1], [*self._line], dict(self._ended)
        rest = self._changing, [*self._forked], pairs.origin, [*pairs.pairs], pairs.latest
        return (self.state, self.before, self.after, *line, *rest)

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Continue with what another host saved."""
        self.state, self.before, self.after, cells, self._line, self._ended, self._changing, self._forked, *pairs = saved
        self.pairs = Pairs(pairs[0], [*pairs[1]], pairs[2])
        self._cells = {cell.number: cell for cell in map(_read, cells)}
        self.reserve(self.before, *self._ended.values(), *(pair.state for pair in self.pairs.pairs))

    def apply(self, word: str, *rest: Any) -> bool:
        """Apply an event that another host recorded (`record`). Return whether it belongs to the history."""
        match word, rest:
            case "begin", (state, at):
                self._begin(state, at)
            case "unbegun", ():
                self.unbegin()
            case "rest", (at,):
                self._rest(at)
            case "looked", (files, tasks):
                self._look(files, tasks)
            case "merged", (states,):
                self._merge(states)
            case "forked", (state,):
                self._fork(state)
            case "changing", ():
                self.goes_on_changing()
            case "add", (cell, died):
                self._add(_read(cell), died)
            case "anew", (state,):
                self._begin_anew(state)
            case "go to", (line, state, at, branch, tasks):
                self._go_to(self.read_line(line), state, at, branch, tasks)
            case "abandon", (numbers,):
                self._abandon(numbers)
            case _:
                return False
        self.reserve()
        return True

    def reserve(self, *states: int) -> None:
        """Reserve the numbers that another host assigned."""
        _states.last = max(_states.last, self.state, *states)
        _numbers.last = max(_numbers.last, *self._cells, 0)

    def written_line(self, line: Iterable[Numbered]) -> Line:
        """Encode a line for the record. Cells of other sessions are included in full."""
        line = [*line]
        unknown = (_written(cell, _BEGINNING) for cell in line if cell.number not in self._cells)
        return tuple(cell.number for cell in line), tuple(unknown)

    def read_line(self, line: Line) -> tuple[Numbered, ...]:
        """Decode a line from the record."""
        numbers, cells = line
        _numbers.last = max(_numbers.last, *numbers, 0)
        unknown = {cell.number: cell for cell in map(_read, cells)}
        return tuple(unknown.get(number) or self._cells[number] for number in numbers)


def _written(cell: Numbered, most: int | None = None) -> tuple[Any, ...]:
    entry = cell.entry
    told = entry.status, entry.execution_count, entry.abandoned, entry.tag, entry.after
    return cell.number, cell.begun_in, entry.code[:most], *told


def _read(written: tuple[Any, ...]) -> Numbered:
    number, begun_in, code, status, count, abandoned, tag, after = written
    return Numbered(number, HistoryEntry(code, status, count, abandoned, tag=tag, after=after), begun_in)


def _marked(cell: Numbered, *, abandoned: bool) -> Numbered:
    return cell._replace(entry=dataclasses.replace(cell.entry, abandoned=abandoned))


class KeptResults:
    """The last results of a session."""

    def __init__(self, limit: int) -> None:
        """Start without results.

        Args:
            limit: Memory limit of all results, in bytes.
        """
        self._room = limit
        self._kept: deque[tuple[KeptResult, int]] = deque()

    def keep(self, result: CodeExecutionResult) -> KeptResult:
        """Store a result, and drop the oldest ones to make room."""
        kept, size = KeptResult(result), _size(result)
        self._kept.append((kept, size))
        self._room -= size
        while self._room < 0:
            oldest, size = self._kept.popleft()
            oldest.result = None
            self._room += size
        return kept


def _size(result: CodeExecutionResult) -> int:
    size = _OVERHEAD + sum(map(sys.getsizeof, (result.text, result.output, result.stderr)))
    for item in result.outputs:
        size += _OVERHEAD + sum(map(sys.getsizeof, (item.text, *item.data.values())))
    return size
