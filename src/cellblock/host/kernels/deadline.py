"""Deadlines that exclude some of the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_STEP = 0.01
"""Seconds between checks of `uncounted_seconds`, while it grows as fast as time passes."""


class Deadline:
    """Calls a function when a deadline has passed, unless it is cancelled before."""

    def __init__(self, seconds: float, uncounted_seconds: Callable[[], float], act: Callable[[], None]) -> None:
        """Start the timer.

        Args:
            seconds: After how many counted seconds.
            uncounted_seconds: Returns the seconds so far that do not count; never decreases.
            act: Called at the deadline.
        """
        self._loop = asyncio.get_running_loop()
        self._uncounted_seconds = uncounted_seconds
        self._act = act
        self._end = self._loop.time() + seconds - uncounted_seconds()
        self._timer = self._loop.call_later(seconds, self._due)

    def cancel(self) -> None:
        """Cancel the timer; no effect after the deadline."""
        self._timer.cancel()

    def _due(self) -> None:
        remaining = self._end + self._uncounted_seconds() - self._loop.time()
        if remaining <= 0:
            self._act()
        else:
            self._timer = self._loop.call_later(max(remaining, _STEP), self._due)
