"""The activity of all sessions of a cluster: the streams of its nodes, merged."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import Any

from cellblock.cluster.routing import Where
from cellblock.errors import CellblockError
from cellblock.model.overview import Change
from cellblock.model.plain import as_dict

Changes = AsyncGenerator[dict[str, Any], None]
"""`Change` after `Change`, as JSON data."""

_LOOK = 2.0
"""Seconds between two checks for other nodes."""

_AHEAD = 100
"""How many changes of nodes wait for a slow reader. The nodes wait then, and report the newest state later."""

_SAMPLES = 400
_NOW = ("sessions", "running", "waiting", "memory", "checkpoints")
_EVER = ("cells", "failures", "started")
"""Figures of a moment, and those that count from the beginning: they stay when a node is lost."""


async def watch_all(nodes: Callable[[], Awaitable[list[Where]]], watch: Callable[[Where], Changes]) -> Changes:
    """Yield the changes of all nodes.

    The first change is fresh, with the state reported by each node. Positions cannot be resumed: another stream starts
    over.

    Args:
        nodes: Returns the current nodes.
        watch: Yields the changes of one node, until it is lost. Its first change is fresh.
    """
    told = Told()
    coming: asyncio.Queue[tuple[str, dict[str, Any] | None]] = asyncio.Queue(_AHEAD)
    looking = asyncio.create_task(_look(nodes, watch, coming))
    try:
        yield told.change(fresh=True)
        while True:
            getting = asyncio.ensure_future(coming.get())
            try:
                await asyncio.wait([getting, looking], return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not getting.done():
                    getting.cancel()
            if not getting.done():
                looking.result()  # it ends only because of a bug
            mark, change = getting.result()
            yield told.lost(mark) if change is None else told.heard(mark, change)
    finally:
        looking.cancel()
        await asyncio.wait([looking])


async def _look(
    nodes: Callable[[], Awaitable[list[Where]]], watch: Callable[[Where], Changes], coming: asyncio.Queue[Any]
) -> None:
    """Forward the changes of each node, including nodes that join later."""
    tasks: dict[str, asyncio.Task[None]] = {}
    try:
        while True:
            with suppress(CellblockError):  # without a director, new nodes are unknown
                for where in await nodes():
                    if where.mark not in tasks or tasks[where.mark].done():
                        tasks[where.mark] = asyncio.create_task(_pass_on(where, watch, coming))
            await asyncio.sleep(_LOOK)
    finally:
        for task in tasks.values():
            task.cancel()
        if tasks:
            await asyncio.wait([*tasks.values()])


async def _pass_on(where: Where, watch: Callable[[Where], Changes], coming: asyncio.Queue[Any]) -> None:
    with suppress(CellblockError):  # the node is lost, or leaves; if it is still there, it is watched again
        async with aclosing(watch(where)) as changes:
            async for change in changes:
                await coming.put((where.mark, change))
    await coming.put((where.mark, None))


class Told:
    """The state of a cluster as a reader knows it."""

    def __init__(self) -> None:
        self._era, self._numbers = secrets.token_hex(4), itertools.count(1)
        self._sessions: dict[str, str] = {}
        """The id of a session → the mark of the node that reported it last: sessions move."""
        self._approvals: dict[str, str] = {}
        self._samples: dict[str, deque[Mapping[str, Any]]] = {}
        self._left = dict.fromkeys(_EVER, 0)

    def change(self, *, fresh: bool = False, **parts: Any) -> dict[str, Any]:
        return {**as_dict(Change(f"{self._era}-{next(self._numbers)}", fresh)), **parts}

    def heard(self, mark: str, change: Mapping[str, Any]) -> dict[str, Any]:
        """Convert a node's change for the reader.

        Args:
            mark: The node's mark.
            change: The change.
        """
        self._sessions.update((one["kernel_id"], mark) for one in change["sessions"])
        self._approvals.update((one["id"], mark) for one in change["approvals"])
        return self.change(
            sessions=change["sessions"],
            ended=_gone(self._sessions, mark, change["ended"]),
            approvals=change["approvals"],
            decided=_gone(self._approvals, mark, change["decided"]),
            refusals=[{**one, "id": f"{mark}-{one['id']}"} for one in change["refusals"]],
            samples=self._sums(mark, change["samples"]),
        )

    def lost(self, mark: str) -> dict[str, Any]:
        """Return the change that reports the loss of a node."""
        if samples := self._samples.pop(mark, None):
            for name in _EVER:
                self._left[name] += samples[-1][name]
        ended, decided = (_gone(told, mark, [*told]) for told in (self._sessions, self._approvals))
        return self.change(ended=ended, decided=decided)

    def _sums(self, mark: str, samples: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Record a node's figures. One node sets the pace: for each of its samples, return the sum of all nodes."""
        kept = self._samples.setdefault(mark, deque(maxlen=_SAMPLES))
        kept.extend(new := [*samples])
        return [self._sum(one) for one in new] if mark == next(iter(self._samples)) else []

    def _sum(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        moments = [next((one for one in reversed(kept) if one["at"] <= sample["at"]), None) for kept in self._samples.values()]
        known = [one for one in moments if one is not None]
        total = {name: sum(one[name] for one in known) for name in (*_NOW, *_EVER)}
        ever = {name: total[name] + self._left[name] for name in _EVER}
        return {**sample, **total, **ever, "start_ms": max(one["start_ms"] for one in known)}


def _gone(told: dict[str, str], mark: str, ids: Iterable[str]) -> list[str]:
    """Delete and return ids that a node reports as gone and that no other node has now."""
    gone = [one for one in ids if told.get(one) == mark]
    for one in gone:
        del told[one]
    return gone
