"""The history of a session: which cells led to its present state, and which belong to states that it has left."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterable
from itertools import takewhile
from typing import Any, NamedTuple, TypeAlias

from cellblock.host.kernels.state_record import NO_RECORD
from cellblock.model import HistoryEntry

_KEPT = 1000
_MAX_WRITTEN = 4 * 1024 * 1024
"""Characters of code that are recorded for a later host; of older cells beyond this limit, only the beginning."""

_BEGINNING = 1000

Line: TypeAlias = tuple[tuple[int, ...], tuple[tuple[Any, ...], ...]]
"""A line as recorded: the numbers of its cells, and those cells that the reader does not know."""


class _Numbers:
    """Numbers that are unique in one process and in those that it continues."""

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        """Return the next one."""
        self.last += 1
        return self.last


_numbers = _Numbers()
_states = _Numbers()
_MOST_SPANS = 10 * _KEPT
"""Maximum number of spans. If there are more, changes of the oldest ones count as those of others, and stay."""

_COARSE = 5 if sys.platform == "linux" else time.CLOCK_REALTIME
"""Linux's CLOCK_REALTIME_COARSE, which Python does not name. Some file systems use this clock, which advances in steps of
milliseconds; others use the usual one, which is ahead of it."""


_APART = 50_000_000
"""Nanoseconds by which two clocks may differ at the end of a span that they measure together; more is a clock that was set."""

_STEP = 10_000_000
"""Nanoseconds of the longest step of the clock of files."""


class Instant(NamedTuple):
    """A moment by two clocks, in nanoseconds.

    Attributes:
        files: By the clock of file systems, which can be set while the session lives.
        steady: By a clock that nobody can set.
    """

    files: int
    steady: int

    @classmethod
    def now(cls) -> Instant:
        """Return the present moment: no file was changed later."""
        return cls(time.time_ns(), time.monotonic_ns())

    @classmethod
    def before_changes(cls) -> Instant:
        """Return the present moment: no file is changed earlier from now on."""
        return cls(files_time(), time.monotonic_ns())


Span: TypeAlias = tuple[int, Instant, Instant | None]
"""A state, and when files were changed that belong to it: start, and end if it is known."""


class Numbered(NamedTuple):
    """A cell of a line.

    Attributes:
        number: Its number in this process.
        entry: Its entry in the history.
        begun_in: The state that it began in; 0 if unknown.
    """

    number: int
    entry: HistoryEntry
    begun_in: int


class Past:
    """The cells of one session, and the line of those that led to its present state.

    Attributes:
        state: The number of the session's state. Two moments share a number only if nothing has run between them, or if the
            session went back from one to the other. A later state has a larger number.
        before: The state in which the running or last cell began; 0 if none has run.
        after: The label of the cell that led to that state; empty if there is none.
        record: Records events for a later host, in the words of `apply`.
    """

    def __init__(self) -> None:
        self.record = NO_RECORD
        self._cells: dict[int, Numbered] = {}
        self._line: list[int] = []
        self._ended: dict[int, int] = {}
        """Cells whose state ended with their kernel, and the state of the fresh kernel that replaced it."""
        self.state = _states.next()
        self.before = 0
        self.after = ""
        self._changing = 0
        """The state that tasks of its code go on changing, if it is the present one."""
        self._rested: Instant | None = None
        """When anything has last run in that state, as far as is known."""
        self._earlier = 0, ""
        """`before` and `after` as they were before the last `begin`, for `unbegin`."""
        self._spans: list[Span] = []
        """The states that led to the present one, each with the span in which files were changed: start and end."""
        self._quiet: set[int] = set()
        """States of which it is recorded that nobody else had saved files since the state before (`is_quiet`)."""

    @property
    def entries(self) -> list[HistoryEntry]:
        """The last cells, oldest first, including those of states that were left."""
        return [cell.entry for cell in self._cells.values()]

    @property
    def present(self) -> list[HistoryEntry]:
        """The last cells that led to the present state, oldest first."""
        return [self._cells[number].entry for number in self._line]

    @property
    def line(self) -> tuple[Numbered, ...]:
        """The same cells with their numbers."""
        return tuple(self._cells[number] for number in self._line)

    @property
    def changing(self) -> bool:
        """Whether tasks of the code go on changing the present state, and files, between cells."""
        return self._changing == self.state

    def goes_on_changing(self, since: Instant | None = None) -> None:
        """Record that tasks of the code go on changing the present state: files that they change belong to it.

        Args:
            since: When they began to; None: when the state began.
        """
        self._goes_on_changing(since, Instant.now())

    def _goes_on_changing(self, since: Instant | None, rested: Instant) -> None:
        self._changing, self._rested = self.state, rested
        if since is None:
            self._end_span(None)
        else:
            self._spans.append((self.state, since, None))
        self.record.write("changing", since, rested)

    def stayed(self) -> None:
        """Record that tasks have not run since the last copy: what others have changed since is theirs."""
        self._stayed(Instant.before_changes())

    def _stayed(self, at: Instant) -> None:
        if self._spans and self._spans[-1][1] == self._rested:  # as the last time
            self._spans.pop()
        else:
            self._end_span(self._rested)
        self._rested = at
        self._spans.append((self.state, at, None))
        self.record.write("stayed still", at)

    def _end_span(self, at: Instant | None) -> None:
        """Set the end of the last span, if it is one of the present state."""
        if self._spans and self._spans[-1][0] == self.state:
            self._spans[-1] = (*self._spans[-1][:2], at)

    def begin(self) -> None:
        """Begin a cell, possibly a silent one, which makes another state whatever it does; or a state made by tasks."""
        self._begin(_states.next(), Instant.before_changes())

    def _begin(self, state: int, at: Instant) -> None:
        self._earlier = self.before, self.after
        if self.changing:
            self._end_span(at)
        self.before, self.state = self.state, state
        self.after = self._cells[self._line[-1]].entry.tag if self._line else ""
        self._spans.append((state, at, None))
        del self._spans[:-_MOST_SPANS]
        self.record.write("begin", state, at)

    def unbegin(self) -> None:
        """Undo `begin`: the cell was not sent to any kernel."""
        self._spans = [span for span in self._spans if span[0] != self.state]
        self.state = self.before
        if self.changing:
            self._end_span(None)
        self.before, self.after = self._earlier
        self.record.write("unbegun")

    def rest(self, state: int) -> None:
        """Record that a cell has ended, or that the files were kept after it: later changes are not its work."""
        self._rest(state, Instant.now())

    def _rest(self, state: int, at: Instant) -> None:
        if self._spans and self._spans[-1][0] == state != self._changing and self._spans[-1][2] is None:
            self._spans[-1] = (state, self._spans[-1][1], at)
            self.record.write("rest", state, at)

    def brought_back(self, began: Instant) -> None:
        """Record that files were restored for the present state, from some moment until now."""
        self._brought_back(began, Instant.now())

    def _brought_back(self, began: Instant, ended: Instant) -> None:
        self._append(self.state, began, ended)
        self.record.write("brought", began, ended)

    def _append(self, state: int, began: Instant, ended: Instant | None) -> None:
        """Append a span; one that begins before the clock of files has gone on since another of its state continues that."""
        of, first, last = self._spans[-1] if self._spans else (0, began, None)
        if of == state and last is not None and began.files <= last.files and began.steady - last.steady < _STEP:
            self._spans[-1] = (state, first, ended)
        else:
            self._spans.append((state, began, ended))

    def spans_after(self, state: int, line: Iterable[Numbered] | None = None) -> list[tuple[int, int]]:
        """Return the spans of file changes on the way from a state to the present one: start and end in nanoseconds.

        Args:
            state: The number of that state.
            line: The cells that led to it, if it may be another state than the one in which the cells after it began: after
                an undo of all cells and a restore of one, the fresh kernel of the undo has a larger number than all of these.
        """
        spans = self._after(state, line)
        nexts = [*(began for _, began, _ in spans), None][1:]
        return [
            span for (_, began, ended), after in zip(spans, nexts, strict=True) for span in _file_spans(began, ended or after)
        ]

    def left_at(self, state: int, line: Iterable[Numbered]) -> float | None:
        """Return when the first thing began that led from a state to the present one, or None (`time.monotonic`).

        Args:
            state: As for `spans_after`.
            line: As for `spans_after`.
        """
        spans = self._after(state, line)
        return spans[0][1].steady / 1e9 if spans else None

    def _after(self, state: int, line: Iterable[Numbered] | None) -> list[Span]:
        if line is not None:
            state = min([state, *(begun for number in self.left_by(line) if (begun := self._cells[number].begun_in))])
        return [*takewhile(lambda span: span[0] > state, reversed(self._spans))][::-1]

    def add(self, entry: HistoryEntry, *, died: bool = False) -> None:
        """Add a cell that has ended; if the kernel died with it, it has led to no state."""
        self._add(Numbered(_numbers.next(), entry, self.before), died)

    def _add(self, cell: Numbered, died: bool) -> None:  # in its recorded form
        self._cells[cell.number] = cell
        if not cell.entry.abandoned and not died:
            self._line.append(cell.number)
        self._forget()
        self.record.write("add", _written(cell), died)

    def replace(self, entries: Iterable[HistoryEntry]) -> None:
        """Replace the history with that of a loaded session. The caller has to record the whole state anew."""
        self._cells.clear()
        self._line.clear()
        self._ended.clear()
        self._spans.clear()
        self.before = 0
        for entry in entries:
            self.add(entry)
        self.state = _states.next()

    def begin_anew(self) -> None:
        """Start a new line: the kernel is fresh, and no cell has led to its state. Earlier cells are no longer in the line."""
        self._begin_anew(_states.next())

    def _begin_anew(self, state: int) -> None:
        self.state = state
        self._ended.update(dict.fromkeys(self._line, self.state))
        self._line.clear()
        self._spans.clear()
        self._quiet.clear()
        self.record.write("anew", state)

    def go_to(
        self, line: Iterable[Numbered], state: int, *, with_files: bool = False, branch: Iterable[Span] = ()
    ) -> list[HistoryEntry]:
        """Move to another state, and return the cells that this leaves.

        Args:
            line: The cells that led to that state; possibly of another session.
            state: The number of that state.
            with_files: Whether files have the content of that state again that were changed on the way from it. Not all were
                written: some had this content. They must come back with the next older state, too, so their times count for
                this one from now on.
            branch: The spans (`spans_of`) of another session's cells in the line, if it has changed the same files.
        """
        line, branch = [*line], [*branch]
        self.record.write("go to", self.written_line(line), state, with_files, branch)
        left = self.left_by(line)
        begun = [begun for number in left if (begun := self._cells[number].begun_in)]
        own = {of for of, _, _ in self._spans}
        cut = min([state, *begun, *(of if of in own else of - 1 for of, _, _ in branch)])
        self._abandon(left)
        self._abandon(number for number, ended in self._ended.items() if ended > state)
        self._ended = {number: ended for number, ended in self._ended.items() if ended <= state}
        for cell in line:
            self._cells[cell.number] = _marked(cell, abandoned=False)
        self._cells = dict(sorted(self._cells.items()))  # some may return that were forgotten, or come from elsewhere
        self._line = [cell.number for cell in line]
        self._forget()
        place = len(self._spans) - sum(1 for _ in takewhile(lambda span: span[0] > cut, reversed(self._spans)))
        tail = self._spans[place:] if with_files else []
        del self._spans[place:]
        self._spans += branch
        for _, began, ended in tail:
            self._append(state, began, ended)
        self.state = state
        return [self._cells[number].entry for number in left if number in self._cells]

    def is_quiet(self, state: int) -> bool:
        """Return whether it was recorded that nobody else had saved files since the state before this one."""
        return state in self._quiet

    def record_quiet(self, state: int) -> None:
        """Record that nobody else had saved files since the state before this one: its files are not needed for an undo."""
        self._quiet.add(state)
        if len(self._quiet) > 2 * _KEPT:
            self._quiet &= {cell.begun_in for cell in self.line}
        self.record.write("quiet", state)

    def spans_of(self, state: int) -> list[Span]:
        """Return when files were changed on the way to a state of this session."""
        return [span for span in self._spans if span[0] <= state]

    def left_by(self, line: Iterable[Numbered]) -> list[int]:
        """Return the numbers of the cells that `go_to` would leave."""
        kept = {cell.number for cell in line}
        return [number for number in self._line if number not in kept]

    def abandon(self, numbers: Iterable[int]) -> None:
        """Mark cells as abandoned: the state to which they led was left."""
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

    def saved(self) -> tuple[Any, ...]:
        """Return everything, for `restore`."""
        left, cells = _MAX_WRITTEN, []
        for cell in reversed(self._cells.values()):
            left -= len(cell.entry.code)
            cells.append(_written(cell, None if left >= 0 else _BEGINNING))
        rest = self.state, self.before, self.after, cells[::-1], [*self._line], dict(self._ended), [*self._spans]
        return (*rest, self._changing, self._rested, {*self._quiet})

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Continue with what another host has saved."""
        *rest, self._changing, self._rested, self._quiet = saved
        self.state, self.before, self.after, cells, self._line, self._ended, self._spans = rest
        self._cells = {cell.number: cell for cell in map(_read, cells)}
        self.reserve(self.before, *self._ended.values(), *(span[0] for span in self._spans))

    def apply(self, word: str, *rest: Any) -> bool:
        """Apply an event that another host has recorded (`record`); return whether it belongs to the past."""
        match word, rest:
            case "begin", (state, at):
                self._begin(state, at)
            case "unbegun", ():
                self.unbegin()
            case "rest", (state, at):
                self._rest(state, at)
            case "brought", (began, ended):
                self._brought_back(began, ended)
            case "stayed still", (at,):
                self._stayed(at)
            case "changing", (since, rested):
                self._goes_on_changing(since, rested)
            case "add", (cell, died):
                self._add(_read(cell), died)
            case "anew", (state,):
                self._begin_anew(state)
            case "quiet", (state,):
                self.record_quiet(state)
            case "go to", (line, state, with_files, branch):
                self.go_to(self.read_line(line), state, with_files=with_files, branch=branch)
            case "abandon", (numbers,):
                self._abandon(numbers)
            case _:
                return False
        self.reserve()
        return True

    def reserve(self, *states: int) -> None:
        """Reserve the numbers that another host has assigned."""
        _states.last = max(_states.last, self.state, *states)
        _numbers.last = max(_numbers.last, *self._cells, 0)

    def written_line(self, line: Iterable[Numbered]) -> Line:
        """Return a line in its recorded form: cells of other sessions are included in full."""
        line = [*line]
        unknown = (_written(cell, _BEGINNING) for cell in line if cell.number not in self._cells)
        return tuple(cell.number for cell in line), tuple(unknown)

    def read_line(self, line: Line) -> tuple[Numbered, ...]:
        """Return a line from its recorded form."""
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


def _file_spans(began: Instant, ended: Instant | None) -> list[tuple[int, int]]:
    """Return when files were changed between two moments, or since one: two spans if their clock was set in between.

    Changes before the clock was set have times of the old clock, counted from the beginning; later ones have times of the new
    clock, counted back from the end.
    """
    until = ended or Instant.now()
    took = until.steady - began.steady
    if abs(until.files - began.files - took) < _APART:
        return [(began.files, sys.maxsize if ended is None else ended.files)]
    last = sys.maxsize if ended is None else ended.files
    return [(began.files, began.files + took + _STEP), (until.files - took - _STEP, last)]


def files_time() -> int:
    """Return a time, in nanoseconds, not later than the time of any file that is changed from now on."""
    return time.clock_gettime_ns(_COARSE)
