"""Thread pools and threads that degrade gracefully when no thread can be started."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class Threads(ThreadPoolExecutor):
    """A pool that starts its first thread at once, and continues with existing threads if no more can be started.

    The standard library's pool then raises ``RuntimeError``, although it has threads.

    Raises:
        RuntimeError: The first thread cannot be started.
    """

    def __init__(self, most: int, name: str) -> None:
        super().__init__(most, thread_name_prefix=name)
        self.submit(int)

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()  # where `submit` starts a thread
        except RuntimeError:
            if not self._threads:
                raise


def run_aside(work: Callable[[], object], name: str) -> None:
    """Run a function in a new thread, or in this one if none can be started."""
    try:
        threading.Thread(target=work, name=name).start()
    except RuntimeError:  # the system has no room for a thread, or Python is about to end
        work()
