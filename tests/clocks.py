"""Time, put forward: whatever waits for a time to come goes on at once, and no test has to wait for it. And a clock to set."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from unittest import mock

import pytest

from cellblock.host.kernels import stopping


class Clock:
    """The time of this process, until it is left: of `time.monotonic` and of event loops. It goes on by itself, too.

    So `asyncio.timeout`, `asyncio.sleep` and `loop.call_later` go by it. Threads that wait and other processes do not.
    """

    def __init__(self) -> None:
        self._real = time.monotonic
        self._ahead = 0.0
        self._patch = mock.patch("time.monotonic", self._now)

    def __enter__(self) -> Clock:
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()

    def _now(self) -> float:
        return self._real() + self._ahead

    async def advance(self, seconds: float) -> None:
        """Put the time forward, and let everything run that was to run until then."""
        self._ahead += seconds
        for _ in range(5):  # a timer, the task that it cancels, and those that wait for that one
            await asyncio.sleep(0)


def hurry_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each means of stopping a cell or a question but the last one, which kills, have hardly any time to work."""
    *cells, kill = stopping._LADDER
    monkeypatch.setattr(stopping, "_LADDER", (*((name, act, 0.05) for name, act, _ in cells), kill))
    monkeypatch.setattr(stopping, "_PATIENCES", (0.05, 0.05, 0.05, 0.05))


class WallClock:
    """The time of day of this process, which can be set, until it is left. Files have the real time."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._patches = ExitStack()

    def __enter__(self) -> WallClock:
        for name, scale in (("time", 1), ("time_ns", 10**9), ("clock_gettime_ns", 10**9)):
            self._patches.enter_context(mock.patch(f"time.{name}", self._changed(getattr(time, name), scale)))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def _changed(self, real: Callable[..., float], scale: int) -> Callable[..., float]:
        def now(*clock: int) -> float:
            return real(*clock) + type(real(*clock))(self.ahead * scale)

        return now
