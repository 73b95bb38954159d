"""Delays effects outside of a session while its code runs speculatively: it may still be withdrawn."""

from __future__ import annotations

import asyncio

from cellblock.errors import StateError


class Holding:
    """Lets tool calls and connections through, or makes them wait until they are released or refused."""

    def __init__(self) -> None:
        """Start without holding anything."""
        self._held: asyncio.Future[bool] | None = None
        self.waiting = 0
        """How many wait."""

    def hold(self) -> None:
        """Hold what comes from now on."""
        self._held = asyncio.get_running_loop().create_future()

    def release(self) -> None:
        """Let everything through."""
        self._settle(True)

    def refuse(self) -> None:
        """Refuse what waits, because its code was withdrawn; let through what comes from now on."""
        self._settle(False)

    def _settle(self, wanted: bool) -> None:
        held, self._held = self._held, None
        if held is not None and not held.done():
            held.set_result(wanted)

    async def wait(self) -> None:
        """Wait while effects are held.

        Raises:
            StateError: The code that wants it was withdrawn.
        """
        held = self._held
        if held is None:
            return
        self.waiting += 1
        try:
            if not await asyncio.shield(held):
                raise StateError("the code that asked for it was withdrawn before it was complete")
        finally:
            self.waiting -= 1
