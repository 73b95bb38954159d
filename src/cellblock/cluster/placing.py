"""Batched requests to the director to place sessions: a call costs a hundred times as much as a decision."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cellblock.errors import DaemonError

if TYPE_CHECKING:
    from cellblock.cluster.director_calls import DirectorCalls

_MOST = 100
"""Sessions of one call: the director has to answer other calls within milliseconds."""

_Wanted = tuple[str, int, Sequence[str]]


class Placing:
    """A batcher that collects requests during a call, and sends them with the next call."""

    def __init__(self, director: DirectorCalls) -> None:
        self._director = director
        self._waiting: list[tuple[_Wanted, asyncio.Future[dict[str, Any] | None]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def place(self, name: str, memory: int, preload: Sequence[str], patience: float) -> dict[str, Any]:
        """Return the location of an existing or new session, as `Director.place` does.

        Raises:
            DaemonError: The director has ended.
        """
        answer: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(((name, memory, preload), answer))
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        if (placed := await answer) is not None:
            return placed
        waited: dict[str, Any] = await self._director.asked("place", name, memory, preload, patience)
        return waited

    async def _ask(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
            try:
                answers = await self._director.asked("place_at_once", [wanted for wanted, _ in batch])
            except asyncio.CancelledError:
                left, self._waiting = [*batch, *self._waiting], []
                for _, answer in left:
                    if not answer.done():
                        answer.set_exception(DaemonError("the link to the cluster was closed"))
                raise
            except Exception as error:  # Ray's exceptions are not documented
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
            else:
                for (_, answer), placed in zip(batch, answers, strict=True):
                    if not answer.done():  # otherwise the caller has given up
                        answer.set_result(placed)

    async def close(self) -> None:
        """Stop sending requests."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
