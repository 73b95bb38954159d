"""Writes to files in a thread, in order: a disk that stalls must not stall the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

_LINGER = 1.0  # seconds that an idle thread waits for more


class DiskThread:
    """Does what it is told in a thread, one thing after the other. The thread ends by itself when there is nothing to do.

    Attributes:
        waiting: Bytes that have been handed over and not written yet.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self._tasks: deque[tuple[Callable[[], None], int]] = deque()
        self._changed = threading.Condition()
        self._running = False

    def do(self, task: Callable[[], None], size: int = 0) -> None:
        """Have something done, after everything before it.

        Args:
            task: What to do. It must not raise.
            size: How many bytes it holds.
        """
        with self._changed:
            self._tasks.append((task, size))
            self.waiting += size
            start, self._running = not self._running, True
            self._changed.notify()
        if start:
            try:
                threading.Thread(target=self._run, args=(_LINGER,), name="cellblock-disk", daemon=True).start()
            except RuntimeError:  # there is no room for a thread: a cell must not wait for one for ever
                self._run(0)

    def _run(self, linger: float) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._tasks, linger):
                    self._running = False
                    return
                task, size = self._tasks.popleft()
            task()
            del task  # it holds what was written
            with self._changed:
                self.waiting -= size

    async def done(self) -> None:
        """Wait until everything has been done that was handed over by now."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:
                pass  # the loop is closed, and nobody waits

        self.do(tell)
        await done.wait()
