"""Thread pools and threads that degrade gracefully when no thread can be started."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


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


async def in_own_thread(start: Callable[[Callable[[], None]], object], work: Callable[[], _T]) -> _T:
    """Run a function in a thread of its own, not of the loop's pool, and return its result.

    Args:
        start: Starts the thread with a function.
        work: The function.

    Raises:
        RuntimeError: The function raised an exception that would end the event loop or the caller, such as SystemExit.
    """
    import asyncio  # not for programs without a loop

    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[_T | None, BaseException | None]] = loop.create_future()

    def settle(value: _T | None, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((value, error))

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as problem:  # also SystemExit: it would end this thread, and the caller would wait forever
            error = problem
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            pass  # the loop is closed, and no one waits

    start(run)
    value, error = await done
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        raise error
    if error is not None:
        raise RuntimeError(f"{type(error).__name__}: {error}")
    return value  # type: ignore[return-value]  # without an error, it is the function's result
