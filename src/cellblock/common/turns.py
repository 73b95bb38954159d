"""Fair scheduling of connections, so that work for many of them does not block the event loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from weakref import WeakKeyDictionary

_SLICE = 0.01
"""Seconds per turn of the loop for all connections together."""
_SHORTEST = 0.001
"""Seconds for one of them if many wait, so that the last does not wait for long."""


class Turns:
    """A scheduler that lets the connections of one loop work in turns.

    A read that finds data at once does not suspend its task, so a busy connection would never yield.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    async def give_way(self) -> None:
        """Return at once while this turn of the loop has time left. Otherwise wait for the next turn.

        Call it before each short piece of work: parsing a head, a chunk, a read, packing an answer.
        """
        if time.monotonic() < self._until:
            return
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._next)
        await turn

    def _next(self) -> None:
        """Wake one waiting task, once in each turn of the loop."""
        self._scheduled = False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # it was cancelled
                self._until = time.monotonic() + max(_SLICE / (1 + len(self._waiting)), min(_SHORTEST, _SLICE))
                turn.set_result(None)
                break
        if self._waiting:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next)


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns() -> Turns:
    """Return the scheduler of the running loop, which all of its connections share."""
    loop = asyncio.get_running_loop()
    if (found := _turns.get(loop)) is None:
        found = _turns[loop] = Turns()
    return found
