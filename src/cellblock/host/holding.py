"""A gate for external effects while a session's code runs speculatively, because the code may be withdrawn."""

from __future__ import annotations

import asyncio

from cellblock.errors import StateError


class Holding:
    """A gate that passes tool calls and connections, or blocks them until they are released or refused."""

    def __init__(self) -> None:
        self._held: asyncio.Future[bool] | None = None
        self.waiting = 0
        """How many wait."""

    def hold(self) -> None:
        """Block all later effects."""
        self._held = asyncio.get_running_loop().create_future()

    def release(self) -> None:
        """Open the gate."""
        self._settle(True)

    def refuse(self) -> None:
        """Refuse blocked effects, because their code was withdrawn, and open the gate."""
        self._settle(False)

    def _settle(self, wanted: bool) -> None:
        held, self._held = self._held, None
        if held is not None and not held.done():
            held.set_result(wanted)

    async def wait(self) -> None:
        """Wait until the gate is open.

        Raises:
            StateError: The requesting code was withdrawn.
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
