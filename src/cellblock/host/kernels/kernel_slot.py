"""The kernels of one session, one after another: each replaces one that died or was reset."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeAlias

from cellblock.errors import LaunchError, StateError
from cellblock.host.kernels.kernel import Kernel
from cellblock.host.kernels.stopping import despite_cancellation

_log = logging.getLogger("cellblock")
Launch: TypeAlias = Callable[["Kernel | None"], Awaitable[Kernel]]
_ATTEMPTS = 3
"""Kernels that may die as soon as they are ready before the caller hears of it."""


class KernelSlot:
    """One session's kernels, one at a time.

    The next kernel is always started by a task of the slot, which puts it in its place itself. Callers only wait for that
    task: cancelling one of them loses nothing.

    Attributes:
        current: The one that there is, dead or alive; None before the first.
        relieve: Frees memory of the session, if its kernel and its checkpoints are over the limit; returns whether it could.
        on_put: Told of each kernel that takes its place, at once.
        on_replaced: Called when another kernel has taken the place of one.
    """

    def __init__(self, launch: Launch) -> None:
        """Begin without a kernel.

        Args:
            launch: Starts one, and returns when it takes cells. It is given the one that has died, whose state may be gone on
                from. If it is cancelled it leaves nothing.
        """
        self._launch = launch
        self.relieve: Callable[[], bool] = lambda: False
        self.on_put: Callable[[Kernel], None] = lambda _kernel: None
        self.on_replaced: Callable[[], None] = lambda: None
        self._starting: asyncio.Task[None] | None = None
        self._closed = False
        self._left: Kernel | None = None
        """The one that `swap` has put out of its place, until it is closed"""
        self._dead: Kernel | None = None
        """The one that died and ran the last cell, while another is in its place or about to be"""
        self.current: Kernel | None = None

    @property
    def count(self) -> int:
        """The number of the last cell of the current kernel; 0 if it has run none."""
        return 0 if self.current is None or self.current.death is not None else self.current.count

    @property
    def ready(self) -> Kernel | None:
        """The kernel, if it takes a cell at once, as far as can be seen; else `live` has to be waited for."""
        return self.current if self._starting is None and self.current is not None and self.current.fit else None

    async def live(self) -> Kernel:
        """Return a kernel that lives: the current one, or the next one if that has died.

        Raises:
            LaunchError: No other could be started. The next call tries again.
            StateError: The slot was closed.
        """
        for _ in range(_ATTEMPTS):
            if self._starting is None and self.current is not None:
                await self.current.settle()
                if self.current.death is None:
                    return self.current
            await self._wait_for_next()
            if self.current is not None and self.current.death is None:
                return self.current
        assert self.current is not None
        assert self.current.death is not None
        raise LaunchError(f"{_ATTEMPTS} kernels died as soon as they were ready: {self.current.death.cause}")

    def adopt(self, kernel: Kernel) -> None:
        """Begin with a kernel of another host."""
        kernel.memory.relieve = self.relieve
        self.current = kernel

    async def forget_dead(self) -> None:
        """Take note that the last cell's result is known, or of no more use: the next one is about to begin."""
        if self._dead is not None:
            await self._dead.forget()
            self._dead = None

    def replace_dead(self) -> None:
        """If the current one has died, begin to start the next one, for which nobody waits yet."""
        if self._starting is None and self.current is not None and self.current.death is not None:
            self._begin(self._replace(fresh=False)).add_done_callback(_take_note)

    async def renew(self) -> None:
        """Put a fresh kernel in place of the current one, while nothing runs.

        Raises:
            LaunchError: It could not be started. The next call of `live` tries again.
            StateError: The slot was closed.
        """
        if self._starting is not None:
            await asyncio.wait([self._starting])
            if self.current is not None and self.current.death is None and not self.current.of_copy:
                return  # the last one had died, and what has taken its place is fresh
        renewal = self._begin(self._replace(fresh=True))
        await asyncio.wait([renewal])
        _check(renewal)

    async def swap(self, launch: Callable[[], Awaitable[Kernel]], swapped: Callable[[], None]) -> None:
        """Put another kernel in place of the current one, while nothing runs. If that fails, the current one stays.

        A caller that is cancelled waits for the end of this, so that nothing else begins meanwhile.

        Args:
            launch: Starts the other one. If it is cancelled it leaves nothing.
            swapped: Called when the other one is in place.

        Raises:
            CheckpointError, LaunchError: It could not be started.
            StateError: The slot was closed.
        """
        if self._starting is not None:
            await asyncio.wait([self._starting])
        exchange = self._begin(self._exchange(launch, swapped))
        await despite_cancellation(exchange)
        _check(exchange)

    async def close(self) -> None:
        """End the current kernel, and whatever was to take its place. It can be repeated."""
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        for kernel in (self._left, self.current):
            if kernel is not None:
                await kernel.close()
        await self.forget_dead()

    async def _wait_for_next(self) -> None:
        starting = self._starting or self._begin(self._replace(fresh=False))
        await asyncio.wait([starting])
        _check(starting)

    def _begin(self, change: Coroutine[None, None, None]) -> asyncio.Task[None]:
        if self._closed:
            change.close()
            raise StateError("the session is closed")
        self._starting = asyncio.create_task(change)
        self._starting.add_done_callback(self._forget)
        return self._starting

    def _forget(self, started: asyncio.Task[None]) -> None:
        self._starting = None
        if not started.cancelled():
            started.exception()  # mark as retrieved: there may be no waiter, and the next one tries again

    async def _replace(self, *, fresh: bool) -> None:
        old = self.current
        if old is not None:
            if not fresh and self._dead is None:
                self._dead = old
                old.follow()
            await old.close()
        if fresh:
            old = self.current = None
            await self.forget_dead()
        kernel = await self._launch(old)
        if old is not None:
            kernel.take_over_output(old)
        self._put(kernel)

    async def _exchange(self, launch: Callable[[], Awaitable[Kernel]], swapped: Callable[[], None]) -> None:
        kernel = await launch()
        self._left = self.current
        self._put(kernel)
        swapped()
        if self._left is not None:
            await self._left.discard()
        self._left = None

    def _put(self, kernel: Kernel) -> None:
        kernel.memory.relieve = self.relieve
        self.current = kernel
        self.on_put(kernel)
        with contextlib.suppress(OSError):  # no room for that: then the next cell cannot be written down either, and says so
            kernel.write_base()  # again: now it is known what the kernel goes on from
        self.on_replaced()


def _check(started: asyncio.Task[None]) -> None:
    """Raise what a start has ended with, if it failed."""
    if started.cancelled():
        raise StateError("the session was closed while a kernel started")
    started.result()


def _take_note(task: asyncio.Task[None]) -> None:
    """Take note of a failed start: the next cell tries again, and raises what it meets."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("no new kernel after a death: %s", error)
