"""`input()` of an execution: asks its followers for lines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from cellblock.host.kernels.cell import Prompt

REJOIN = 1.0
"""Seconds for a client that has lost its connection to reconnect and answer."""


class Stdin:
    """Standard input of one execution. It ends when no client is left to answer."""

    def __init__(self, tell: Callable[[Mapping[str, Any]], object]) -> None:
        """Set up, without a question and without clients.

        Args:
            tell: Passes a question to the clients.
        """
        self._tell = tell
        self._line: asyncio.Future[str | None] | None = None
        self._ended, self._readers = False, 0

    @property
    def asks(self) -> bool:
        """Whether it waits for a line."""
        return self._line is not None and not self._line.done()

    async def ask(self, prompt: Prompt) -> str | None:
        """Ask the clients for a line, and return it; None at the end of the input."""
        if self._ended:
            return None
        self._line = asyncio.get_running_loop().create_future()
        self._tell({"prompt": str(prompt), "password": prompt.password})
        try:
            return await self._line
        finally:
            self._line = None

    def answer(self, line: str | None) -> bool:
        """Deliver the requested line, or None for the end of the input; return whether one was requested."""
        if self._line is None or self._line.done():
            return False
        self._line.set_result(line)
        return True

    def add_reader(self) -> None:
        """Add a client that answers."""
        self._readers += 1
        self._ended = False

    def remove_reader(self) -> None:
        """Remove such a client. If it was the last, input ends, unless one reconnects soon."""
        self._readers -= 1
        asyncio.get_running_loop().call_later(REJOIN, self._end)

    def _end(self) -> None:
        if self._readers == 0:
            self._ended = True
            self.answer(None)
