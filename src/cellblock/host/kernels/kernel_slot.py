"""The sequence of kernels of one session: each replaces one that died or was reset."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeAlias

from cellblock.common.tasks import despite_cancellation
from cellblock.errors import LaunchError, StateError
from cellblock.host.kernels.kernel import Kernel
from cellblock.host.kernels.memory import Relief

_log = logging.getLogger("cellblock")
Launch: TypeAlias = Callable[["Kernel | None"], Awaitable[Kernel]]
_ATTEMPTS = 3
"""How many kernels may die as soon as they are ready before the caller gets an error."""


class KernelObserver(Relief):
    """An observer of a session's kernels. By default, it does nothing."""

    def kernel_put(self, kernel: Kernel) -> None:
        """Handle a new current kernel."""

    def kernel_recorded(self, kernel: Kernel) -> None:
        """Handle a new current kernel, after it was recorded as the session's."""

    def code_stopped(self) -> None:
        """Handle the end of code that was stopped, or whose kernel was replaced."""


class KernelSlot(Relief):
    """One session's kernels, one at a time.

    The next kernel is always started and installed by a task of the slot. Callers only wait for that task, so cancelling one
    loses nothing.

    Attributes:
        current: The current kernel, dead or alive; None before the first.
    """

    def __init__(self, launch: Launch) -> None:
        """Start without a kernel.

        Args:
            launch: Starts a kernel, and returns when it accepts cells. Its argument is the dead kernel, whose state may be
                continued. If cancelled, it leaves nothing behind.
        """
        self._launch = launch
        self._observers: list[KernelObserver] = []
        self._starting: asyncio.Task[None] | None = None
        self._closed = False
        self._left: Kernel | None = None
        """The kernel that `swap` has replaced last, until it has ended."""
        self._dead: Kernel | None = None
        """The dead kernel that ran the last cell, while its replacement is in place or about to be."""
        self.current: Kernel | None = None

    def observe(self, observer: KernelObserver) -> None:
        """Add an observer of all later kernels."""
        self._observers.append(observer)

    def relieve(self) -> bool:
        """Have an observer drop its copies of the kernels. Return whether there were any."""
        return any(observer.relieve() for observer in self._observers)

    def end_programs(self, why: str) -> bool:
        """Have an observer end the session's programs with a reason. Return whether there were any."""
        return any(observer.end_programs(why) for observer in self._observers)

    def code_stopped(self) -> None:
        """Tell the observers that code has ended which was stopped, or whose kernel was replaced."""
        for observer in self._observers:
            observer.code_stopped()

    @property
    def count(self) -> int:
        """The number of the current kernel's last cell; 0 if it has run none."""
        return 0 if self.current is None or self.current.death is not None else self.current.count

    @property
    def ready(self) -> Kernel | None:
        """The kernel, if it seems ready for a cell; otherwise await `live`."""
        return self.current if self._starting is None and self.current is not None and self.current.fit else None

    @property
    def position(self) -> str:
        """The position of the next cell, if the current kernel seems ready for it; else empty."""
        kernel = self.current
        return kernel.position if self._starting is None and kernel is not None and kernel.usable else ""

    def go_on(self) -> None:
        """Resume paused background code (`Kernel.go_on`)."""
        if self.current is not None:
            self.current.go_on()

    async def live(self) -> Kernel:
        """Return a live kernel: the current one, or its replacement if it died.

        Raises:
            LaunchError: No replacement could be started. The next call tries again.
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
        """Start with another host's kernel."""
        self._place(kernel)

    async def forget_dead(self) -> None:
        """Drop the dead kernel: its last cell's result is known, or the next cell is about to begin."""
        if self._dead is not None:
            await self._dead.forget()
            self._dead = None

    def replace_dead(self) -> None:
        """Start a replacement in the background if the current kernel has died."""
        if self._starting is None and self.current is not None and self.current.death is not None:
            self._begin(self._replace(fresh=False)).add_done_callback(_take_note)

    async def renew(self, *, force: bool = False) -> None:
        """Replace the current kernel with a fresh one, while nothing runs.

        Args:
            force: Whether to skip the current one's exit handlers, because its state is abandoned.

        Raises:
            LaunchError: The fresh kernel could not be started. The next call of `live` tries again.
            StateError: The slot was closed.
        """
        if self._starting is not None:
            await asyncio.wait([self._starting])
            if self.current is not None and self.current.death is None and not self.current.of_copy:
                return  # the last one had died, and its replacement is fresh
        renewal = self._begin(self._replace(fresh=True, force=force))
        await asyncio.wait([renewal])
        _check(renewal)

    async def swap(self, prepare: Callable[[], Awaitable[Kernel]], commit: Callable[[], None]) -> None:
        """Replace the current kernel while nothing runs. On failure, the current one stays.

        A cancelled caller waits for the replacement, so that nothing else begins meanwhile.

        Args:
            prepare: Starts the new kernel. A failure or cancellation leaves nothing behind.
            commit: Handles the completed replacement.

        Raises:
            CheckpointError, LaunchError: The new kernel could not be started.
            StateError: The slot was closed.
        """
        if self._starting is not None:
            await asyncio.wait([self._starting])
        exchange = self._begin(self._exchange(prepare, commit))
        await despite_cancellation(exchange)
        _check(exchange)

    async def close(self) -> None:
        """End the current kernel and any pending replacement. Idempotent."""
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        try:
            await self._end_left()
        finally:
            if self.current is not None:
                await self.current.close()
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

    async def _replace(self, *, fresh: bool, force: bool = False) -> None:
        await self._end_left()
        old = self.current
        if old is not None:
            if not fresh and self._dead is None:
                self._dead = old
                old.remember()
            await (old.discard() if force else old.close())
        if fresh:
            old = self.current = None
            await self.forget_dead()
        kernel = await self._launch(old)
        if old is not None:
            kernel.take_over_output(old)
        self._put(kernel)
        self._recorded(kernel)

    async def _exchange(self, prepare: Callable[[], Awaitable[Kernel]], commit: Callable[[], None]) -> None:
        await self._end_left()
        kernel = await prepare()
        self._left = self.current
        self._put(kernel)
        commit()
        self._recorded(kernel)
        if self._left is not None:
            await self._left.step_aside(self._left_ended)

    async def _end_left(self) -> None:
        """Wait for the end of the kernel that `swap` replaced last, so that at most one is ending."""
        if self._left is not None:
            await self._left.close()
            self._left_ended()

    def _left_ended(self) -> None:
        self._left = None

    def _recorded(self, kernel: Kernel) -> None:
        for observer in self._observers:
            observer.kernel_recorded(kernel)
        self.code_stopped()

    def _place(self, kernel: Kernel) -> None:
        kernel.memory.relief = self
        self.current = kernel

    def _put(self, kernel: Kernel) -> None:
        self._place(kernel)
        for observer in self._observers:
            observer.kernel_put(kernel)
        with contextlib.suppress(OSError):  # no room: the next cell cannot be recorded either, and reports it
            kernel.write_base()  # again: the state from which the kernel continues is now known


def _check(started: asyncio.Task[None]) -> None:
    """Raise the error of a failed start."""
    if started.cancelled():
        raise StateError("the session was closed while a kernel started")
    started.result()


def _take_note(task: asyncio.Task[None]) -> None:
    """Log a failed start. The next cell tries again, and raises its error."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("no new kernel after a death: %s", error)
