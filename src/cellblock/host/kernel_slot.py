"""The kernels of one session: one after another, each in the place of one that died or was reset."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cellblock.host.kernel import Kernel

_log = logging.getLogger("cellblock")


class KernelSlot:
    """One session's kernels, of which one lives at a time.

    Attributes:
        current: The one that there is, dead or alive; None before the first, and while another takes its place.
    """

    def __init__(self, launch: Callable[[], Awaitable[Kernel]]) -> None:
        """Begin without a kernel.

        Args:
            launch: Starts one, and returns when it takes cells.
        """
        self._launch = launch
        self._starting: asyncio.Task[Kernel] | None = None
        self.current: Kernel | None = None

    async def start(self) -> None:
        """Start the first one.

        Raises:
            LaunchError: It could not be started.
        """
        self.current = await self._launch()

    async def live(self) -> Kernel:
        """Return a kernel that lives: the current one, or the next one where that has died.

        Raises:
            LaunchError: It had died, and no other could be started. The next call tries again.
        """
        kernel = self.current
        if kernel is not None:
            await kernel.settle()
            if kernel.death is None:
                return kernel
        if self._starting is None:
            self._starting = asyncio.create_task(self._replace(kernel))
        starting = self._starting
        try:
            self.current = await asyncio.shield(starting)
        finally:
            if starting.done():
                self._starting = None
        if kernel is not None:
            self.current.take_over_output(kernel)
        return self.current

    def replace_dead(self) -> None:
        """Where the current one has died, begin to start the next one, for which nobody waits yet."""
        if self.current is not None and self.current.death is not None:
            self._starting = asyncio.create_task(self._replace(self.current))
            self._starting.add_done_callback(_take_note)

    async def renew(self) -> None:
        """Put a fresh kernel in the place of the current one, while nothing runs.

        Raises:
            LaunchError: It could not be started.
        """
        if self._starting is None:  # otherwise the last one has died, and what takes its place is fresh
            old, self.current = self.current, None
            self._starting = asyncio.create_task(self._replace(old))
        await self.live()

    async def close(self) -> None:
        """End the last one."""
        starting = self._starting  # whoever waits for it forgets it when it is done
        if starting is not None:
            await asyncio.wait([starting])
            if not starting.cancelled() and starting.exception() is None:
                self.current = starting.result()
        if self.current is not None:
            await self.current.close()

    async def _replace(self, old: Kernel | None) -> Kernel:
        if old is not None:
            await old.close()
        return await self._launch()


def _take_note(task: asyncio.Task[Kernel]) -> None:
    """Take note of a failed start: the next cell tries again, and raises what it meets."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("no new kernel after a death: %s", error)
