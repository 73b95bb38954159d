"""Measures the memory of several kernels in one init, with one walk over all processes for all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Collection

from cellblock.launch.init import processes
from cellblock.launch.init.seats import Seat

AGE = 0.2
"""Seconds for which a count holds: less than passes between two measurements of a busy kernel."""
SHARE = 4
"""A count also holds for this many times as long as it took: measuring takes a fifth of init's time at most."""


class Census:
    """A recent measurement of the processes of several kernels."""

    def __init__(self) -> None:
        self._until = 0.0
        self._own: dict[Seat, set[int]] = {}
        self._common: set[int] = set()
        """Processes that belong to no kernel, and so count for each."""
        self._at_most: dict[int, int] = {}
        self._exact: dict[int, int] = {}

    def used(self, seat: Seat, seats: Collection[Seat], uncounted: Collection[int], enough: int) -> int:
        """Return the memory of a kernel in bytes.

        Args:
            seat: The kernel.
            seats: All kernels.
            uncounted: Processes that count for none: copies, and watchers of programs, which run no code of the session.
            enough: If the exact number is certainly not above this, a larger estimate is returned.
        """
        began = time.monotonic()
        if began >= self._until or seat not in self._own:
            self._count(seats, {*uncounted})
            self._until = began
        found = self._counted(seat)
        used = sum(self._at_most[pid] for pid in found)
        if used > enough:
            used = sum(self._share_of(pid) for pid in found)
        now = time.monotonic()
        self._until = max(self._until, now + max(AGE if self._until == began else 0.0, SHARE * (now - began)))
        return used

    def _count(self, seats: Collection[Seat], uncounted: set[int]) -> None:
        orphans: dict[int, list[int]] = {}
        for pid in processes.children(os.getpid()):
            orphans.setdefault(processes.session_of(pid), []).append(pid)
        self._own = {seat: seat.everything(orphans) - uncounted for seat in seats}
        self._common = {*processes.descendants(os.getpid())}.difference(uncounted, *self._own.values())
        self._at_most = {
            pid: processes.memory_at_most(str(pid)) for pids in (self._common, *self._own.values()) for pid in pids
        }
        self._exact.clear()

    def _counted(self, seat: Seat) -> set[int]:
        """Return the processes that count for a kernel: its own, and those that belong to none."""
        return self._own[seat] | self._common

    def _share_of(self, pid: int) -> int:
        if pid not in self._exact:
            self._exact[pid] = processes.memory_of([pid], 0)
        return self._exact[pid]
