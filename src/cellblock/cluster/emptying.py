"""Draining of a node: its idle sessions move to other nodes at once, busy ones between two cells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from cellblock.cluster.names import InDoubt, Names, Site
from cellblock.cluster.placement import NoRoom
from cellblock.errors import CellblockError, DaemonError

_AT_ONCE = 4
"""Sessions that are saved at the same time, while there are idle ones."""

_MOST_WAITED_FOR = 200
"""Busy sessions that are waited for at the same time."""

_PAUSE, _LONGEST = 0.25, 8.0
_LAST = 0.25
"""The last part of the time, in which sessions also move if something of them is lost, provided that the node ends then."""

Move = Callable[[Site, Site, str, float, bool], Awaitable[str]]
"""Moves a session from a host to another one: its name, for how long it may be busy, and whether all of it has to arrive.

Returns the mark of the host on which it was made."""


class Emptying:
    """The draining of one node.

    Attributes:
        site: The host.
        left: Why sessions are still there, by name.
        moved: The number of moved sessions.
        task: Moves the sessions. It ends at the deadline, or when none are left.
    """

    def __init__(self, names: Names, site: Site, move: Move, seconds: float, *, ends: bool) -> None:
        """Start to drain.

        Args:
            names: The locations of sessions.
            site: The host.
            move: Moves one session.
            seconds: How long to wait for busy sessions.
            ends: Whether the node ends then, so that losing a part of a session is better than losing all of it.
        """
        self.site = site
        self.left: dict[str, str] = {}
        self.moved = 0
        self._names = names
        self._move = move
        self._ends = ends
        self._began = time.monotonic()
        self._seconds = seconds
        self.task = asyncio.create_task(self._run())

    @property
    def _remaining(self) -> float:
        return self._began + self._seconds - time.monotonic()

    async def _run(self) -> None:
        room, pause, first = asyncio.Semaphore(_AT_ONCE), _PAUSE, True
        while not self.site.why:
            names = [name for name in self.site.sessions if name in self.site.told]
            self.left = {name: self.left.get(name, "it is waiting to be moved") for name in names}
            before = self.moved
            await asyncio.gather(*(self._one(name, room, wait=not first) for name in names))
            if not self.site.sessions or self._remaining <= 0:
                break
            pause = _PAUSE if first or self.moved > before else min(pause * 2, _LONGEST)
            room, first = asyncio.Semaphore(_MOST_WAITED_FOR), False
            await asyncio.sleep(min(pause, max(self._remaining, 0)))

    async def _one(self, name: str, room: asyncio.Semaphore, *, wait: bool) -> None:
        async with room:
            there = self._names.move(name, self.site.mark)
            if isinstance(there, Site):
                try:
                    last = self._ends and self._remaining < _LAST * self._seconds
                    until = self._remaining - (_LAST * self._seconds if self._ends and not last else 0)
                    origin = await self._move(self.site, there, name, max(until, 0.0) if wait else 0.0, not last)
                except CellblockError as error:
                    self.left[name] = str(error)
                    if not isinstance(error, DaemonError):  # otherwise the outcome is unknown until the hosts report
                        self._names.stayed(name, there.mark)
                else:
                    self._names.moved(name, there.mark, origin)
                    self.moved += 1
                    self.left.pop(name, None)
            elif isinstance(there, NoRoom | InDoubt):
                self.left[name] = str(there)
            else:
                self.left.pop(name, None)  # the session has ended
