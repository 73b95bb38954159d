"""The state of a session, as a fold over the events of its log: by the live host, and again by the next one."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, NamedTuple, assert_never

from cellblock.host.kernels.pairs import Instant, Pair, Pairs
from cellblock.host.kernels.state_events import (
    Abandoned,
    Began,
    Called,
    Copied,
    Dropped,
    Ended,
    Event,
    Filed,
    Forked,
    Going,
    Looked,
    Merged,
    Numbered,
    Placed,
    RedosDropped,
    Renewed,
    Rested,
    Saved,
    Stayed,
    Undid,
    Unsent,
    Went,
)
from cellblock.model import HistoryEntry

_KEPT = 1000
_MAX_FORKED = 50
_MAX_OUTSIDE = 1000
_MAX_WRITTEN = 4 * 1024 * 1024
"""Characters of code that are recorded for a later host; of older cells beyond this limit, only the beginning."""

_BEGINNING = 1000


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
    """Return a new number of a state."""
    return _states.next()


def unused_state() -> int:
    """Return a number that no state has yet, and that the next one has at least."""
    return _states.last + 1


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


class StateWriter:
    """A null writer of one session's events."""

    def write(self, event: Event) -> None:
        """Write an event."""

    def settle(self) -> None:
        """Flush all events before anything else happens."""

    def rewrite(self, state: SessionState | None = None) -> None:
        """Write the whole state again, because more has changed than single events express; or one about to be reached."""


NOT_WRITTEN = StateWriter()


class SessionState:
    """The state of one session: its cells, checkpoints and files.

    Live code changes it by `commit` only, or by a change of more than one session, after which `rewrite` is called. The next
    host reads the last written state, and applies the later events.

    Attributes:
        state: The number of the session's state. Two moments share a number only if nothing ran between them, or if the
            session restored one from the other. A later state has a larger number.
        before: The state in which the running or last cell began; 0 if none has run.
        after: The label of the cell that led to that state; empty if none.
        pairs: The files before and after each state change.
        checkpoints: The checkpoints by id, oldest first.
        fresh: The state that the last fresh kernel began with; 0 if there was none.
        begun_with: The cells before the beginning of a session that continues another one, or a saved one.
        kernel: The number of the kernel; 0 if there was none.
        cell: The last cell that was about to begin.
        going: The unfinished change to another state, if any.
        outside: The last approved external calls, with their times (`time.monotonic`).
        redos: The last undos, oldest first. `redoable` says which can be reverted.
        recalled: Whether an earlier host wrote the events.
        log: Writes the events for a later host.
    """

    def __init__(self) -> None:
        self.state = next_state()
        self.before = 0
        self.after = ""
        self.pairs = Pairs(self.state)
        self.checkpoints: dict[str, Saved] = {}
        self.fresh = 0
        self.begun_with: AbstractSet[int] = frozenset()
        self.kernel = 0
        self.cell = LastCell()
        self.going: Going | None = None
        self.outside: deque[tuple[float, str]] = deque(maxlen=_MAX_OUTSIDE)
        self.redos: list[Undid] = []
        self.recalled = False
        self.log = NOT_WRITTEN
        self._cells: dict[int, Numbered] = {}
        self._line: list[int] = []
        self._ended: dict[int, int] = {}
        """Cells whose state ended with their kernel, and the state of the fresh kernel that replaced it."""
        self._changing = 0
        """The state that tasks of its code keep changing, if it is the present one."""
        self._earlier = 0, ""
        """The values of `before` and `after` before the last `begin`, for `unbegin`."""
        self._forked: list[int] = []
        """The last states that branches began in. An adopted branch continues the pairs from there."""
        self._redos_end = False
        """Whether the last change of state ends the redos, unless `Unsent` or `Undid` follows."""

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

    @property
    def redoable(self) -> list[Undid]:
        """The undos that can be reverted, oldest first."""
        return [] if self._redos_end else self.redos

    @property
    def saved(self) -> list[Saved]:
        """All checkpoints, also of undone states."""
        return [*self.checkpoints.values(), *(one for undid in self.redos for one in undid.saved)]

    def left_by(self, line: Iterable[Numbered]) -> list[int]:
        """Return the numbers of the cells that `go_to` would abandon."""
        kept = {cell.number for cell in line}
        return [number for number in self._line if number not in kept]

    # -- changes -------------------------------------------------------------------------------------------------------

    def commit(self, event: Event) -> None:
        """Write an event, and apply it."""
        self.log.write(event)
        self.apply(event)

    def goes_on_changing(self) -> None:
        """Record that tasks keep changing the current state. Files that they change belong to it."""
        self.commit(Rested())

    def begin(self, position: str = "", not_undoable: str = "", *, looks: bool = False) -> None:
        """Begin a cell, possibly silent, or a state created by tasks. Each creates another state."""
        self.commit(Began(next_state(), Instant.before_changes(), position, not_undoable, looks))

    def rest(self, state: int) -> None:
        """Record that a cell has ended, so that later changes are not its own."""
        if state == self.state != self._changing:
            self.commit(Rested(Instant.now()))

    def rest_later(self) -> None:
        """Record that what the last cell left has run until now, unless it still runs."""
        if self.state != self._changing:
            self.commit(Rested(Instant.now(), late=True))

    def look(self, files: Any, *, rested: bool = False) -> None:
        """Record the current files (`Pairs.look`).

        Args:
            files: The snapshot, if there is one of the current state.
            rested: Whether no task can have run since the last look.
        """
        if files is not None or self.pairs.latest is not None:
            self.commit(Looked(files, self.changing and not rested))

    def merge(self) -> None:
        """Join pairs around states that neither a checkpoint nor a branch needs (`Pairs.idle`)."""
        if states := self.pairs.idle({*(saved.state for saved in self.checkpoints.values()), *self._forked}):
            self.commit(Merged(states))

    def add(self, entry: HistoryEntry, *, died: bool = False, not_undoable: str = "") -> None:
        """Add an ended cell. A cell that died with its kernel led to no state."""
        self.commit(Ended(Numbered(_numbers.next(), entry, self.before), died, not_undoable))

    def begin_anew(self) -> None:
        """Start a new line: the kernel is fresh, and no cell led to its state."""
        self.commit(Renewed(next_state()))

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
        self.commit(Went(*self._written_line(line), state, began, [*branch], tasks))

    def replace(self, entries: Iterable[HistoryEntry]) -> None:
        """Replace the history with a loaded session's. `rewrite` must follow."""
        self._cells.clear()
        self._line.clear()
        self._ended.clear()
        self.before = 0
        for entry in entries:
            self.add(entry)
        self.state = next_state()
        self.pairs.clear(self.state)

    def come_back(self) -> None:
        """Return to the state before the last undo. `rewrite` must follow."""
        *self.redos, undid = self.redos
        last = undid.saved[-1]
        self._take_line(last.line)
        self._ended = {number: ended for number, ended in self._ended.items() if ended <= last.state}
        self.state, self.fresh, self.going = last.state, undid.fresh, None
        self.pairs.become(undid.pairs)

    def to_come_back(self) -> SessionState:
        """Return the state that `come_back` is about to reach, for a host that must finish it."""
        then, undid = copy.copy(self), self.redos[-1]
        then.pairs = Pairs()
        then.checkpoints |= {one.id: one for one in undid.saved}
        then.come_back()
        then.going = Going(undid.checkpoints[-1], "redo", Instant.before_changes(), since=undid.since)
        return then

    # -- the reducer ---------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:  # one case an event
        """Apply an event, of this host or an earlier one."""
        match event:
            case Began():
                self._begin(event)
            case Unsent():
                self._unbegin()
            case Ended():
                self._add(event)
            case Rested(at, late):
                if late:
                    self.pairs.go_on()
                self._rest(at)
            case Looked(files, tasks):
                self.pairs.look(files, tasks=tasks)
            case Merged(states):
                self.pairs.merge(states)
            case Forked(state):
                known = [one for one in self._forked if one != state and self.pairs.knows(one)]
                self._forked = [*known, state][-_MAX_FORKED:]
            case Copied(saved):
                self.checkpoints[saved.id] = saved._replace(state=self.state, line=self.line)
            case Filed(checkpoint, files, without):
                self.checkpoints[checkpoint] = self.checkpoints[checkpoint]._replace(files=files, without_files=without)
            case Dropped(checkpoint):
                del self.checkpoints[checkpoint]
            case Placed(number):
                self.kernel = number
            case Going():
                self.going = event
                if event.way == "crash":
                    self.cell = self.cell._replace(lost=event.lost)
            case Went():
                self._go_to(event)
            case Renewed(state):
                self._begin_anew(state)
            case Abandoned(cells):
                self._abandon(cells)
            case Undid():
                there = tuple(self.checkpoints.pop(one) for one in event.checkpoints)
                self.redos, self._redos_end = [*self.redos, event._replace(saved=there)], False
            case RedosDropped(left):
                self.redos = self.redos[max(len(self.redos) - left, 0) :]
            case Stayed():
                self.going = None
            case Called(at, call):
                self.outside.append((at, call))
            case _:
                assert_never(event)

    def _end_redos(self, *, unless_followed: bool) -> None:
        """End all redos, or only if neither `Unsent` nor `Undid` follows."""
        if self._redos_end or not unless_followed:
            self.redos = []
        self._redos_end = unless_followed

    def _begin(self, event: Began) -> None:
        if self._redos_end or (event.position and not event.looks):
            self._end_redos(unless_followed=True)
        self._earlier = self.before, self.after
        if self.changing:
            self.pairs.end(event.at.after_changes())
        self.before, self.state = self.state, event.state
        self.after = self._cells[self._line[-1]].entry.tag if self._line else ""
        self.pairs.begin(event.state, event.at)
        if event.position:
            self.cell = LastCell(event.position, event.not_undoable, earlier=self.cell._replace(earlier=None))
            self.going = None  # a cell cannot begin during the change

    def _unbegin(self) -> None:
        self.state = self.before
        self.before, self.after = self._earlier
        self.pairs.unbegin()
        self._redos_end = False
        if self.changing:
            self.pairs.go_on()
        self.cell = self.cell.earlier or LastCell()

    def _rest(self, at: Instant | None) -> None:
        if at is None:
            self._changing = self.state
            self.pairs.go_on()
        else:
            self.pairs.end(at)

    def _add(self, event: Ended) -> None:
        cell = event.cell
        self._cells[cell.number] = cell
        if not cell.entry.abandoned and not event.died:
            self._line.append(cell.number)
        self.cell = self.cell._replace(added=True, not_undoable=event.not_undoable)
        self._forget()

    def _begin_anew(self, state: int) -> None:
        self._end_redos(unless_followed=self.going is not None and self.going.way == "undo")
        self._ended.update(dict.fromkeys(self._line, state))
        self._line.clear()
        self.pairs.clear(state)
        self.state = self.fresh = state
        self.begun_with, self.going = frozenset(), None

    def _go_to(self, event: Went) -> None:
        if self.going is None or self.going.way != "redo":  # a later host has finished the last redo
            self._end_redos(unless_followed=self.going is not None and self.going.way == "undo")
        line, state, branch = self._read_line(event.line, event.cells), event.state, [*event.branch]
        left = self.left_by(line)
        begun = [begun for number in left if (begun := self._cells[number].begun_in)]
        cut = min([state, *begun, *(self._last_before(pair.state) for pair in branch[:1])])
        self._abandon(left)
        self._abandon(number for number, ended in self._ended.items() if ended > state)
        self._ended = {number: ended for number, ended in self._ended.items() if ended <= state}
        self._take_line(line)
        self._forget()
        if not branch and cut == state and not self.pairs.knows(state):
            cut = self._last_before(state)
        self.state, self.going = state, None
        self.pairs.go_to(state, cut, event.at, branch, tasks=event.tasks)

    def _take_line(self, line: Iterable[Numbered]) -> None:
        line = [_with(cell, abandoned=False) for cell in line]
        self._cells.update({cell.number: cell for cell in line})
        self._cells = dict(sorted(self._cells.items()))  # forgotten or other sessions' cells may be out of order
        self._line = [cell.number for cell in line]

    def _last_before(self, state: int) -> int:
        """Return the last state before another one in the pairs."""
        return max((pair.state for pair in self.pairs.pairs if pair.state < state), default=min(self.pairs.origin, state))

    def _abandon(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if (cell := self._cells.get(number)) is not None:
                self._cells[number] = _with(cell, abandoned=True)

    def _forget(self) -> None:
        while len(self._cells) > _KEPT:
            oldest = next(iter(self._cells))
            del self._cells[oldest]
            self._ended.pop(oldest, None)
            if self._line and self._line[0] == oldest:
                del self._line[0]

    # -- for a later host ----------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, records: Sequence[Any]) -> SessionState | None:
        """Read a written state and the events after it; None if they are incomplete."""
        # More than one, if the host was killed between a rewrite and the removal of what that replaced.
        bases = [place for place, record in enumerate(records) if isinstance(record, cls)]
        if not bases or bases[0] > 0:
            return None
        state: SessionState = records[bases[-1]]
        for event in records[bases[-1] + 1 :]:
            state.apply(event)
            _states.last = max(_states.last, state.state)
        state.reserve()
        return state

    def __getstate__(self) -> dict[str, Any]:
        """Return everything for a later host. Each cell is included once: a line has the numbers of those known."""
        left, cells = _MAX_WRITTEN, list[Numbered]()
        for cell in reversed(self._cells.values()):
            left -= len(cell.entry.code)
            cells.append(cell if left >= 0 else _cut(cell, _BEGINNING))
        redos = [(one._replace(saved=()), self._written_saved(one.saved)) for one in self.redos]
        there = {"_cells": cells[::-1], "checkpoints": self._written_saved(self.checkpoints.values()), "redos": redos}
        return {**self.__dict__, "log": NOT_WRITTEN, **there}

    def __setstate__(self, written: dict[str, Any]) -> None:
        self.__dict__.update(written, recalled=True)
        self._cells = {cell.number: cell for cell in written["_cells"]}
        self.checkpoints = {one.id: one for one in self._read_saved(written["checkpoints"])}
        self.redos = [one._replace(saved=tuple(self._read_saved(saved))) for one, saved in written["redos"]]
        pairs = (*self.pairs.pairs, *(pair for undid in self.redos for pair in undid.pairs.pairs))
        states = (*(pair.state for pair in pairs), *(one.state for one in self.saved))
        self.reserve(self.before, *self._ended.values(), *states)

    def reserve(self, *states: int) -> None:
        """Reserve the numbers that another host assigned."""
        _states.last = max(_states.last, self.state, *states)
        _numbers.last = max(_numbers.last, *self._cells, *self._line, 0)

    def _written_saved(self, saved: Iterable[Saved]) -> list[tuple[Any, ...]]:
        return [(one._replace(line=()), *self._written_line(one.line, _BEGINNING)) for one in saved]

    def _read_saved(self, written: Iterable[tuple[Any, ...]]) -> Iterator[Saved]:
        return (one._replace(line=self._read_line(*line)) for one, *line in written)

    def _written_line(self, line: Iterable[Numbered], most: int | None = None) -> tuple[tuple[int, ...], tuple[Numbered, ...]]:
        """Return the numbers of a line's cells, and the cells that this session does not know, with code up to a length."""
        line = [*line]
        unknown = (cell if most is None else _cut(cell, most) for cell in line if cell.number not in self._cells)
        return tuple(cell.number for cell in line), tuple(unknown)

    def _read_line(self, numbers: Iterable[int], cells: Iterable[Numbered]) -> tuple[Numbered, ...]:
        unknown = {cell.number: cell for cell in cells}
        return tuple(unknown.get(number) or self._cells[number] for number in numbers)


def _with(cell: Numbered, *, abandoned: bool) -> Numbered:
    """Return a cell, abandoned or not."""
    if cell.entry.abandoned == abandoned:
        return cell
    return cell._replace(entry=replace(cell.entry, abandoned=abandoned))


def _cut(cell: Numbered, most: int) -> Numbered:
    """Return a cell with only the beginning of its code."""
    return cell._replace(entry=replace(cell.entry, code=cell.entry.code[:most]))
