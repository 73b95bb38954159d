"""Has the placeholders of a sandbox removed while nothing of its session runs, and made again before anything does."""

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
    """Knows when nothing of the kernels that share one init runs.

    A kernel that reports wrongly that it is idle only harms itself: init makes the workspace read-only for it.

    Attributes:
        lifted: Whether the placeholders may have been removed, so that `wake` has to come before anything runs.
    """

    def __init__(self, ask: Callable[[], Collection[Control]]) -> None:
        """Start with placeholders.

        Args:
            ask: Asks all kernels whether their code has left anything running, if none runs a cell; returns the connections to
                their init, one for each. None of them, if something runs. The answers go to `answered`.
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
        """Stop the timer: there are no kernels."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def wake(self, control: Control) -> None:
        """Have the placeholders made again, if they were removed. Something of the session may run when this returns.

        Raises:
            BusyError: They cannot be made now, so nothing may run.
        """
        self.touch()
        if not self.lifted:
            return
        if error := await control.block():
            raise BusyError(f"the session cannot go on now, because its protected names cannot be blocked again: {error}")
        self.lifted = False

    def answered(self, control: Control, *, pending: bool) -> None:
        """Handle a kernel's report whether its code has left anything running."""
        if control not in self._waiting:
            return  # nobody has asked
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
