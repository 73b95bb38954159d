"""A small thread pool that waits for a caller's answers, separate from the program's other threads."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import NoReturn, TypeVar

from cellblock.errors import StateError

T = TypeVar("T")
P = TypeVar("P")

_MOST = 3
"""Threads per cell. A cell whose `input()` was interrupted may ask again while the first call still waits."""


class Answerers:
    """The threads that answer one cell's questions.

    A thread cannot be cancelled. In the loop's default executor, a cell with many questions would occupy all threads and block
    other users. The threads are daemon threads, so they do not prevent the program from exiting.
    """

    def __init__(self) -> None:
        self._busy = 0

    async def run(self, function: Callable[[P], T], prompt: P) -> T:
        """Call a function in a thread and return its result.

        Raises:
            StateError: Too many calls have not returned.
        """
        if self._busy >= _MOST:
            raise StateError(f"on_input has not yet returned for {self._busy} earlier questions of this cell")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Callable[[], T]] = loop.create_future()
        context = contextvars.copy_context()

        def deliver(outcome: Callable[[], T]) -> None:
            self._busy -= 1
            if not done.done():
                done.set_result(outcome)

        def call() -> None:
            try:
                got = context.run(function, prompt)
                outcome: Callable[[], T] = lambda: got  # noqa: E731
            except BaseException as error:  # the caller's exception, of any kind
                outcome = _raiser(error)
            try:
                loop.call_soon_threadsafe(deliver, outcome)
            except RuntimeError:
                return  # the loop is closed, and no one waits

        self._busy += 1
        threading.Thread(target=call, name="cellblock-on-input", daemon=True).start()
        return (await done)()


def _raiser(error: BaseException) -> Callable[[], NoReturn]:
    def outcome() -> NoReturn:
        raise error

    return outcome
