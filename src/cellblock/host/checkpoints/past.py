"""What a session ran: which cells have made the state that it has, and which belong to states that it has left."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import TypeAlias

from cellblock.model import HistoryEntry

_KEPT = 1000
_numbers = itertools.count(1)
_states = itertools.count(1)

Numbered: TypeAlias = tuple[int, HistoryEntry]
"""A cell, with the number that it has in this process."""


class Past:
    """The cells of one session, and the line of those that lead to its present state.

    Attributes:
        state: Which state the session is in. Two moments have the same number only if nothing has run between them, or if the
            session went back from the one to the other. A later state has a larger number.
    """

    def __init__(self) -> None:
        self._entries: dict[int, HistoryEntry] = {}
        self._line: list[int] = []
        self.state = next(_states)

    @property
    def entries(self) -> list[HistoryEntry]:
        """The last cells that were run, oldest first, also those of states that were left."""
        return [*self._entries.values()]

    @property
    def present(self) -> list[HistoryEntry]:
        """The last cells that have made the present state, oldest first."""
        return [self._entries[number] for number in self._line]

    @property
    def line(self) -> tuple[Numbered, ...]:
        """These cells with their numbers."""
        return tuple((number, self._entries[number]) for number in self._line)

    def begin(self) -> None:
        """Take note that a cell begins, a silent one perhaps: whatever it does, the state is another one."""
        self.state = next(_states)

    def add(self, entry: HistoryEntry, *, died: bool = False) -> None:
        """Take note of a cell that has ended; if the kernel died with it, it has made no state."""
        number = next(_numbers)
        self._entries[number] = entry
        if not entry.abandoned and not died:
            self._line.append(number)
        self._forget()

    def replace(self, entries: Iterable[HistoryEntry]) -> None:
        """Take note that the session has the past of another one: it was loaded."""
        self._entries.clear()
        self._line.clear()
        for entry in entries:
            self.add(entry)
        self.state = next(_states)

    def begin_anew(self) -> None:
        """Take note that the kernel is fresh: no cell has made its state. The cells before it are done with."""
        self._line.clear()
        self.state = next(_states)

    def go_to(self, line: Iterable[Numbered], state: int) -> list[HistoryEntry]:
        """Take note that the session has another state now, and return the cells that were left by that.

        Args:
            line: The cells that have made that state; of another session, perhaps.
            state: The number of that state.
        """
        line = [*line]
        kept = {number for number, _ in line}
        left = [number for number in self._line if number not in kept]
        self.abandon(left)
        for number, entry in line:
            self._entries[number] = dataclasses.replace(entry, abandoned=False)
        self._entries = dict(sorted(self._entries.items()))  # some may be back that were forgotten, or come from elsewhere
        self._line = [number for number, _ in line]
        self._forget()
        self.state = state
        return [self._entries[number] for number in left if number in self._entries]

    def abandon(self, numbers: Iterable[int]) -> None:
        """Take note that the state that these cells have made was left."""
        for number in numbers:
            if (entry := self._entries.get(number)) is not None:
                self._entries[number] = dataclasses.replace(entry, abandoned=True)

    def _forget(self) -> None:
        while len(self._entries) > _KEPT:
            oldest = next(iter(self._entries))
            del self._entries[oldest]
            if self._line and self._line[0] == oldest:
                del self._line[0]
