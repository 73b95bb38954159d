"""What a session ran: which cells have made the state that it has, and which belong to states that it has left."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

from cellblock.model import HistoryEntry

_KEPT = 1000
_numbers = itertools.count(1)
_states = itertools.count(1)
_COARSE = 5 if sys.platform == "linux" else time.CLOCK_REALTIME
"""Linux's CLOCK_REALTIME_COARSE, which Python does not name. Some file systems read this clock, which goes in steps of
milliseconds; others read the usual one, which is ahead of it."""


class Numbered(NamedTuple):
    """A cell of a line.

    Attributes:
        number: The number that it has in this process.
        entry: What is known of it.
        begun_in: The state that it began in; 0 if that is not known.
    """

    number: int
    entry: HistoryEntry
    begun_in: int


class Past:
    """The cells of one session, and the line of those that lead to its present state.

    Attributes:
        state: Which state the session is in. Two moments have the same number only if nothing has run between them, or if the
            session went back from the one to the other. A later state has a larger number.
        before: The state in which the cell began that runs, or was the last to run; 0 if none has run.
    """

    def __init__(self) -> None:
        self._cells: dict[int, Numbered] = {}
        self._line: list[int] = []
        self._ended: dict[int, int] = {}
        """Cells whose state ended with their kernel, and the state of the fresh kernel that took its place"""
        self.state = next(_states)
        self.before = 0
        self._spans: list[tuple[int, int, int | None]] = []
        """The states that led to the present one, and when something changed files for each: from when until when"""

    @property
    def entries(self) -> list[HistoryEntry]:
        """The last cells that were run, oldest first, also those of states that were left."""
        return [cell.entry for cell in self._cells.values()]

    @property
    def present(self) -> list[HistoryEntry]:
        """The last cells that have made the present state, oldest first."""
        return [self._cells[number].entry for number in self._line]

    @property
    def line(self) -> tuple[Numbered, ...]:
        """These cells with their numbers."""
        return tuple(self._cells[number] for number in self._line)

    def begin(self) -> None:
        """Take note that a cell begins, a silent one perhaps: whatever it does, the state is another one."""
        self.before, self.state = self.state, next(_states)
        self._spans.append((self.state, files_time(), None))
        del self._spans[:-_KEPT]

    def rest(self, state: int) -> None:
        """Take note that a cell has ended, or that the files were kept after it: later changes are not its work."""
        if self._spans and self._spans[-1][0] == state and self._spans[-1][2] is None:
            self._spans[-1] = (state, self._spans[-1][1], time.time_ns())

    def brought_back(self, began: int) -> None:
        """Take note that files were brought back for the present state, from some time on until now."""
        self._spans.append((self.state, began, time.time_ns()))

    def spans_after(self, state: int) -> list[tuple[int, int]]:
        """Return when files were changed to get from a state to the present one: from when until when, in nanoseconds."""
        spans = [span for span in self._spans if span[0] > state]
        nexts = [*(began for _, began, _ in spans), sys.maxsize][1:]
        return [(began, after if ended is None else ended) for (_, began, ended), after in zip(spans, nexts, strict=True)]

    def add(self, entry: HistoryEntry, *, died: bool = False) -> None:
        """Take note of a cell that has ended; if the kernel died with it, it has made no state."""
        number = next(_numbers)
        self._cells[number] = Numbered(number, entry, self.before)
        if not entry.abandoned and not died:
            self._line.append(number)
        self._forget()

    def replace(self, entries: Iterable[HistoryEntry]) -> None:
        """Take note that the session has the past of another one: it was loaded."""
        self._cells.clear()
        self._line.clear()
        self._ended.clear()
        self._spans.clear()
        self.before = 0
        for entry in entries:
            self.add(entry)
        self.state = next(_states)

    def begin_anew(self) -> None:
        """Take note that the kernel is fresh: no cell has made its state. The cells before it are done with."""
        self.state = next(_states)
        self._ended.update(dict.fromkeys(self._line, self.state))
        self._line.clear()
        self._spans.clear()

    def go_to(self, line: Iterable[Numbered], state: int) -> list[HistoryEntry]:
        """Take note that the session has another state now, and return the cells that were left by that.

        Args:
            line: The cells that have made that state; of another session, perhaps.
            state: The number of that state.
        """
        line = [*line]
        left = self.left_by(line)
        self.abandon(left)
        self.abandon(number for number, ended in self._ended.items() if ended > state)
        self._ended = {number: ended for number, ended in self._ended.items() if ended <= state}
        for cell in line:
            self._cells[cell.number] = _marked(cell, abandoned=False)
        self._cells = dict(sorted(self._cells.items()))  # some may be back that were forgotten, or come from elsewhere
        self._line = [cell.number for cell in line]
        self._forget()
        self._spans = [span for span in self._spans if span[0] <= state]
        self.state = state
        return [self._cells[number].entry for number in left if number in self._cells]

    def left_by(self, line: Iterable[Numbered]) -> list[int]:
        """Return the numbers of the cells that `go_to` would leave."""
        kept = {cell.number for cell in line}
        return [number for number in self._line if number not in kept]

    def abandon(self, numbers: Iterable[int]) -> None:
        """Take note that the state that these cells have made was left."""
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


def _marked(cell: Numbered, *, abandoned: bool) -> Numbered:
    return cell._replace(entry=dataclasses.replace(cell.entry, abandoned=abandoned))


def files_time() -> int:
    """Return a time, in nanoseconds, that is not later than that of any file that is changed from now on."""
    return time.clock_gettime_ns(_COARSE)
