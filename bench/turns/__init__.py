"""The worst turn of the host's event loop under hostile input: how long one session can hold up all others.

Each module here is an area, each ``case_*`` coroutine function in it one attack. `bench/turns/run.py` runs each in a process
of its own and prints the longest turn. The target is 50 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class Turns:
    """What was seen of a loop's turns.

    Attributes:
        worst: Seconds of the longest one, without those in which other programs had the processor.
        elapsed: Seconds of the longest one, with them.
        count: How many there were.
        over: Whether no more are counted.
    """

    worst: float = 0.0
    elapsed: float = 0.0
    count: int = 0
    over: bool = False


_current = Turns()


def begin() -> None:
    """Count from the next turn on: what came before was preparation."""
    _current.count = -1


def end() -> None:
    """Count no more turns: what follows is the end of the measurement."""
    _current.over = True


class _Watched:
    """A selector that notes how long the loop is away between two calls of `select`."""

    def __init__(self, selector: Any, turns: Turns, waits: int) -> None:
        self._selector = selector
        self._turns = turns
        self._waits = waits
        self._since: float | None = None
        self._waited = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if self._turns.count < 0:
            self._turns.worst = self._turns.elapsed = self._turns.count = 0
        elif self._since is not None and not self._turns.over:
            elapsed = time.perf_counter() - self._since
            self._turns.count += 1
            self._turns.elapsed = max(self._turns.elapsed, elapsed)
            self._turns.worst = max(self._turns.worst, elapsed - (self._seconds_waited() - self._waited))
        events = self._selector.select(timeout)
        self._since, self._waited = time.perf_counter(), self._seconds_waited()
        return events

    def _seconds_waited(self) -> float:
        """Return how long this thread could run and was not let, as other programs ran."""
        return int(os.pread(self._waits, 100, 0).split()[1]) / 1e9

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)


@contextlib.contextmanager
def watched() -> Iterator[Turns]:
    """Watch the turns of the running loop."""
    global _current
    loop: Any = asyncio.get_running_loop()
    turns, selector = Turns(), loop._selector
    _current = turns
    waits = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    loop._selector = _Watched(selector, turns, waits)
    try:
        yield turns
    finally:
        loop._selector = selector
        os.close(waits)
