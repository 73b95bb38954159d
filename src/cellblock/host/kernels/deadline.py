"""Deadlines that exclude some of the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_STEP = 0.01
"""Seconds between looks at how much is uncounted_seconds, while that grows as fast as time passes."""


class Deadline:
    """Calls a function after some time, unless it is cancelled before."""

    def __init__(self, seconds: float, uncounted_seconds: Callable[[], float], act: Callable[[], None]) -> None:
        """Begin.

        Args:
            seconds: How long it takes, uncounted_seconds time not counted.
            uncounted_seconds: Seconds that were uncounted_seconds so far; they only grow.
            act: What to do then.
        """
        self._loop = asyncio.get_running_loop()
        self._uncounted_seconds = uncounted_seconds
        self._act = act
        self._unexcused = self._loop.time() + seconds - uncounted_seconds()
        self._timer = self._loop.call_later(seconds, self._due)

    def cancel(self) -> None:
        """Do nothing, if nothing was done yet."""
        self._timer.cancel()

    def _due(self) -> None:
        remaining = self._unexcused + self._uncounted_seconds() - self._loop.time()
        if remaining <= 0:
            self._act()
        else:
            self._timer = self._loop.call_later(max(remaining, _STEP), self._due)
