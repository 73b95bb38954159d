"""The worker's event loop, which runs between cells, survives a fork, and applies SIGINT to cells."""

from __future__ import annotations

import _socket
import asyncio
import os
import selectors
import signal
from asyncio import events, tasks
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from cellblock.worker.replaced import replace


class _Selector(selectors.PollSelector):
    """A selector that records events on descriptors other than one.

    Attributes:
        own: That descriptor.
        woken: Whether there was an event.
    """

    own = -1
    woken = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(timeout)
        for key, _ in events:
            if key.fd != self.own:
                self.woken = True
        return events


class Standstill:
    """A detector of callbacks of the session's code in a loop of `new_loop` since its creation."""

    def __init__(self, loop: asyncio.AbstractEventLoop, own: int) -> None:
        """Start to detect.

        Args:
            loop: The loop.
            own: The descriptor of the caller's channel, whose events do not count.
        """
        private: Any = loop  # no public way to any of these
        self._loop, self._selector = private, private._selector  # noqa: SLF001
        self._ready = bool(private._ready)  # noqa: SLF001
        self._timers = self._scheduled()
        self._selector.own, self._selector.woken = own, False

    def lasts(self) -> bool:
        """Return whether none has run. Call it in a callback of the loop, while no other one is ready."""
        if self._ready or self._loop._ready or self._selector.woken:  # noqa: SLF001
            return False
        return self._timers.keys() == self._scheduled().keys()

    def _scheduled(self) -> dict[int, object]:
        """Return the timers by their ids, which are unique while they are referenced."""
        return {id(timer): timer for timer in self._loop._scheduled if not timer.cancelled()}  # noqa: SLF001


def new_loop() -> asyncio.AbstractEventLoop:
    """Create the loop that cells run in and set it as the current one.

    It waits with poll(2): an epoll object would be shared with a fork of this process, and wake the wrong one.
    """
    loop = asyncio.SelectorEventLoop(_Selector())
    asyncio.set_event_loop(loop)
    return loop


def renew(loop: asyncio.AbstractEventLoop) -> None:
    """Continue the loop in a copy of this process, in a callback of the loop, without sharing anything with the original.

    For asyncio, a fork has no running and no current loop, as a safeguard.
    """
    renew_wakeup(loop)
    asyncio.set_event_loop(loop)
    events._set_running_loop(loop)  # noqa: SLF001  # likewise
    if getattr(loop, "_signal_handlers", None):
        signal.set_wakeup_fd(loop._csock.fileno())  # type: ignore[attr-defined]  # noqa: SLF001


def renew_wakeup(loop: asyncio.AbstractEventLoop) -> None:
    """Replace the sockets that wake up a loop from other threads, in a copy of this process, keeping their descriptors.

    With a shared pair, one process would take wakeups for the other.
    """
    ours, theirs = _socket.socketpair()  # with fewer calls than `socket`: each one copies pages here
    for new, name in ((ours, "_ssock"), (theirs, "_csock")):
        new.setblocking(False)
        os.dup2(new.fileno(), getattr(loop, name).fileno(), inheritable=False)  # no public way to it
        new.close()


def has_work(loop: asyncio.AbstractEventLoop, own: int) -> bool:
    """Return whether the loop has callbacks or timers to run before anything else happens, or descriptors to wait for.

    A task that waits for something else, such as another task, continues by a callback.

    Args:
        loop: A loop of `new_loop`.
        own: The number of descriptors for which the caller waits.
    """
    private: Any = loop  # no public way to any of these; one more descriptor is for wakeups from other threads
    if private._ready or len(private._selector.get_map()) > own + 1:  # noqa: SLF001
        return True
    return any(not timer.cancelled() for timer in private._scheduled)  # noqa: SLF001


_dropped: list[object] = []
"""What `drop_work` keeps from being freed."""


def drop_work(loop: asyncio.AbstractEventLoop, own: int) -> None:
    """Drop all other work of a loop of `new_loop`, in a callback of it.

    Args:
        loop: The loop.
        own: A descriptor for which it still waits, in addition to wakeups from other threads.
    """
    private: Any = loop
    stays = {own, private._ssock.fileno()}  # noqa: SLF001  # as in `has_work`
    keys = [*private._selector.get_map().values()]  # noqa: SLF001
    kept = [handle for key in keys if key.fd in stays for handle in key.data]
    for handle in (*private._ready, *private._scheduled):  # noqa: SLF001
        if handle not in kept:
            # Without a reference, the coroutine of a task would be closed, which runs its code.
            _dropped.append((handle._callback, handle._args, handle._context))  # noqa: SLF001
            handle.cancel()
    for key in keys:
        if key.fd not in stays:
            _dropped.append(key.data)
            private._selector.unregister(key.fd)  # noqa: SLF001


class Interrupter:
    """Turns SIGINT into a KeyboardInterrupt of the running cell, wherever the cell is.

    There are three cases. The cell's own code runs: raise right there. The cell awaits something: cancel its task, because
    raising in the middle of the loop would hit other code. No cell runs: the signal came too late; ignore
    it. A second signal for the same cell always raises, because another task may keep the loop from getting that far.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None
        self._in_query = False
        self.hits = 0

    def install(self) -> None:
        """Install the handler for SIGINT."""
        signal.signal(signal.SIGINT, self._handle)

    def watch(self, task: asyncio.Task[Any] | None) -> None:
        """Set the task of the running cell; None when it has ended."""
        self._task = task
        if task is not None:
            self.hits = 0

    def check(self) -> None:
        """Raise if a signal for the running cell came before the cell's code began."""
        if self.hits:
            raise KeyboardInterrupt

    @contextmanager
    def query(self) -> Iterator[None]:
        """Let a SIGINT raise in this block, although no cell runs."""
        self._in_query = True
        try:
            yield
        finally:
            self._in_query = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._in_query:
            raise KeyboardInterrupt
        task = self._task
        if task is None or task.done():
            return
        self.hits += 1
        if asyncio.current_task(self._loop) is task or task in _suspended:
            raise KeyboardInterrupt
        self._loop.call_soon_threadsafe(task.cancel)
        if self.hits > 1:
            raise KeyboardInterrupt


_suspended: list[asyncio.Task[Any] | None] = []
"""The tasks whose calls of `asyncio.run` have not returned yet."""


def allow_nested_run() -> None:
    """Let a cell call `asyncio.run`, although it already runs in a loop.

    Scripts call it, and people paste scripts; in Jupyter they get a RuntimeError. The outer loop is blocked meanwhile, as
    during any other blocking call of a cell.
    """
    original = asyncio.run

    def run(main: Coroutine[Any, Any, Any], *, debug: bool | None = None, **options: Any) -> Any:
        outer = events._get_running_loop()  # noqa: SLF001  # no public way to step out of a loop
        if outer is None:
            return original(main, debug=debug, **options)
        # Leave the task too: since Python 3.14, a thread has one current task, whichever loop it belongs to.
        task = asyncio.current_task(outer)
        _suspended.append(task)
        if task is not None:
            tasks._leave_task(outer, task)  # noqa: SLF001
        events._set_running_loop(None)  # noqa: SLF001
        try:
            return original(main, debug=debug, **options)
        finally:
            events._set_running_loop(outer)  # noqa: SLF001
            if task is not None:
                tasks._enter_task(outer, task)  # noqa: SLF001
            _suspended.pop()
            # `asyncio.run` unsets the current loop.
            asyncio.set_event_loop(outer)

    replace(asyncio, "run", run)
