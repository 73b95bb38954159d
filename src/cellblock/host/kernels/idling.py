"""Removal of a sandbox's placeholders while its session is idle, and their restoration before anything runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from cellblock.errors import BusyError
from cellblock.wire.control import Unblocked

if TYPE_CHECKING:
    from cellblock.host.launch.control import Control

QUIET = 2.0
"""Seconds after the last cell, question or program until placeholders are removed"""

_LONGEST = 60.0
"""Seconds between two attempts, while something that the code has left running prevents it"""


class Idling:
    """Tracks whether the kernels that share one init are idle.

    A kernel that falsely reports to be idle only harms itself: init makes the workspace read-only for it.

    Attributes:
        lifted: Whether the placeholders may be removed, so that `wake` must precede any code.
    """

    def __init__(self, ask: Callable[[], Collection[Control]]) -> None:
        """Start with placeholders.

        Args:
            ask: Asks all kernels whether their code left anything running, if none runs a cell. Returns one connection to init
                for each kernel, or none if something runs. The answers go to `answered`.
        """
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._touched = self._asked = self._loop.time()
        self._pause = QUIET
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: set[Control] = set()
        self._useful = True
        self.lifted = False

    def touch(self) -> None:
        """Record that something of the session runs, or has just ended."""
        self._touched = self._loop.time()
        self._pause = QUIET
        if self._timer is None and self._useful:
            self._arm(QUIET)

    def take_over(self) -> None:
        """Record that another host may have had the placeholders removed."""
        self.lifted = True

    def stop(self) -> None:
        """Stop the timer, because there are no kernels."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def wake(self, control: Control) -> None:
        """Have removed placeholders restored. Code of the session may run when this returns.

        Raises:
            BusyError: The placeholders cannot be restored now, so nothing may run.
        """
        self.touch()
        if not self.lifted:
            return
        if error := await control.block():
            raise BusyError(f"the session cannot continue now, because its protected names cannot be blocked again: {error}")
        self.lifted = False

    def answered(self, control: Control, *, pending: bool) -> None:
        """Handle a kernel's report whether its code left anything running."""
        if control not in self._waiting:
            return  # no one asked
        self._waiting.discard(control)
        if self._touched > self._asked:
            return  # something has begun meanwhile
        if pending:
            self._try_later()
        elif not self._waiting:
            self.lifted = True
            control.unblock()

    def unblocked(self, message: Unblocked) -> None:
        """Handle init's answer."""
        self._useful = message.useful
        if not message.done:
            self.lifted = False
            if message.useful:
                self._try_later()

    def _try_later(self) -> None:
        self._pause = min(2 * self._pause, _LONGEST)
        if self._timer is None:
            self._arm(self._pause)

    def _arm(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if self.lifted:
            return
        if (left := self._touched + self._pause - self._loop.time()) > 0:
            self._arm(left)
            return
        self._asked = self._loop.time()
        self._waiting = {*self._ask()}
        if not self._waiting:
            self._arm(QUIET)
