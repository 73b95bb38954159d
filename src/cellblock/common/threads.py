"""Runs functions in threads, and continues with the existing ones if no further one can be started."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class Threads(ThreadPoolExecutor):
    """A pool that has its first thread from the start. If no other can be made, those that there are do the work.

    The pool of the standard library raises ``RuntimeError`` then, although threads of its own are there.

    Raises:
        RuntimeError: There is no room for the first one.
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
    """Do something in a thread of its own; here, if none can be made: that takes longer, and nothing is left undone.

    Args:
        work: What to do.
        name: What to call the thread.
    """
    try:
        threading.Thread(target=work, name=name).start()
    except RuntimeError:  # there is no room for it, or Python is about to end
        work()
