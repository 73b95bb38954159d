"""Writes files in a thread, in order, so that a stalled disk does not stall the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

_LINGER = 1.0  # seconds that an idle thread waits for more


class DiskThread:
    """Runs tasks in a thread, in order. The thread exits when it is idle.

    Attributes:
        waiting: Bytes in the queue that are not written yet.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self._tasks: deque[tuple[Callable[[], None], int]] = deque()
        self._changed = threading.Condition()
        self._running = False

    def do(self, task: Callable[[], None], size: int = 0) -> None:
        """Queue a task.

        Args:
            task: The task. It must not raise.
            size: Number of bytes that it holds.
        """
        with self._changed:
            self._tasks.append((task, size))
            self.waiting += size
            start, self._running = not self._running, True
            self._changed.notify()
        if start:
            try:
                threading.Thread(target=self._run, args=(_LINGER,), name="cellblock-disk", daemon=True).start()
            except RuntimeError:  # no thread can be started: a cell must not wait for one forever
                self._run(0)

    def _run(self, linger: float) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._tasks, linger):
                    self._running = False
                    return
                task, size = self._tasks.popleft()
            task()
            del task  # it holds the data
            with self._changed:
                self.waiting -= size

    async def done(self) -> None:
        """Wait until all tasks queued so far are done."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:
                pass  # the loop is closed, and no one waits

        self.do(tell)
        await done.wait()
