"""The worst turn of the host's event loop under hostile input: how long one session can hold up all others.

Each module here is an area, each ``case_*`` coroutine function in it one attack. `bench/turns/run.py` runs each in a process
of its own and prints the longest turn. The target is 50 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class Turns:
    """What was seen of a loop's turns.

    Attributes:
        worst: Seconds of the longest one.
        busiest: Seconds of processor time in the one that used most. If `worst` is much more, other programs ran.
        count: How many there were.
    """

    worst: float = 0.0
    busiest: float = 0.0
    count: int = 0


class _Watched:
    """A selector that notes how long the loop is away between two calls of `select`."""

    def __init__(self, selector: Any, turns: Turns) -> None:
        self._selector = selector
        self._turns = turns
        self._since: float | None = None
        self._used = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if self._since is not None:
            self._turns.count += 1
            self._turns.worst = max(self._turns.worst, time.perf_counter() - self._since)
            self._turns.busiest = max(self._turns.busiest, time.thread_time() - self._used)
        events = self._selector.select(timeout)
        self._since, self._used = time.perf_counter(), time.thread_time()
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)


@contextlib.contextmanager
def watched() -> Iterator[Turns]:
    """Watch the turns of the running loop."""
    loop: Any = asyncio.get_running_loop()
    turns, selector = Turns(), loop._selector
    loop._selector = _Watched(selector, turns)
    try:
        yield turns
    finally:
        loop._selector = selector


def forget() -> None:
    """Forget what was seen of the running loop so far: it was preparation."""
    loop: Any = asyncio.get_running_loop()
    turns = loop._selector._turns
    turns.worst, turns.busiest, turns.count = 0.0, 0.0, 0
    loop._selector._since = None
