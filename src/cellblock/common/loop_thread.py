"""An event loop in a thread, for synchronous callers."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import CancelledError, Future
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from cellblock.common.per_process import PerProcess
from cellblock.errors import StateError

_P = ParamSpec("_P")
_T = TypeVar("_T")

_END = object()


class LoopThread:
    """A running event loop, usable from any number of threads.

    Attributes:
        loop: The loop.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._main, args=[started], name="cellblock", daemon=True)
        self._thread.start()
        self.loop = started.result()

    @property
    def usable(self) -> bool:
        """Whether the loop is open and belongs to this process."""
        return self._process == os.getpid() and self._thread.is_alive() and not self._stop.is_set()

    def _main(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        async def serve() -> None:
            self._stop = asyncio.Event()
            started.set_result(asyncio.get_running_loop())
            await self._stop.wait()

        with asyncio.Runner() as runner:  # which closes the generators and tasks at its end
            runner.run(serve())

    def run(self, work: Awaitable[_T]) -> _T:
        """Run a coroutine in the loop, and return its result.

        If the caller is interrupted (Ctrl-C), the coroutine is cancelled, and has ended when this raises.

        Raises:
            StateError: The loop has ended, or this is the loop's own thread, which would wait for itself.
        """
        if not self.usable or threading.current_thread() is self._thread:
            if isinstance(work, Coroutine):
                work.close()  # otherwise it would warn that it was never awaited
            raise StateError(
                "this object was created before a fork, or its event loop has ended: create a new one"
                if not self.usable
                else "a callback that runs in the event loop cannot call synchronous functions of cellblock"
            )
        outcome: Future[_T] = Future()
        begun: list[asyncio.Task[_T]] = []
        self.loop.call_soon_threadsafe(_begin, work, outcome, begun)
        try:
            return outcome.result()
        except CancelledError:
            raise StateError("the call was stopped while it ran") from None
        except (KeyboardInterrupt, SystemExit):
            self.loop.call_soon_threadsafe(lambda: begun[0].cancel())
            _wait(outcome)
            raise

    def call(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function in the loop, and return its result.

        Args:
            work: The function, which does not wait.
            arguments: Its arguments.

        Raises:
            StateError: As for `run`.
        """

        async def called() -> _T:
            return work(*arguments)

        return self.run(called())

    def close(self) -> None:
        """End the loop and everything in it. Idempotent."""
        if self.usable and threading.current_thread() is not self._thread:
            self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()


def _begin(work: Awaitable[_T], outcome: Future[_T], begun: list[asyncio.Task[_T]]) -> None:
    async def done() -> _T:
        return await work

    task = asyncio.create_task(done())
    begun.append(task)
    task.add_done_callback(lambda task: _tell(task, outcome))


def _tell(task: asyncio.Task[Any], outcome: Future[Any]) -> None:
    if task.cancelled():
        outcome.cancel()
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


def _wait(outcome: Future[Any]) -> None:
    try:
        outcome.exception()
    except CancelledError:
        pass


def _make_shared() -> LoopThread:
    made = LoopThread()
    atexit.register(made.close)
    return made


shared = PerProcess(_make_shared)
"""Returns the process's shared loop, and starts it if needed; it ends with the process."""


# -- synchronous versions of asynchronous classes ----------------------------------------------------------------------


class Synchronous:
    """A synchronous version of an asynchronous object, which runs in the loop of a thread."""

    def __init__(self, original: Any, thread: LoopThread) -> None:
        self._original = original
        self._thread = thread


def synchronous(method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]) -> Callable[Concatenate[Any, _P], _T]:
    """Return a method of `Synchronous` that runs one of its original, with the same signature and docstring."""

    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        result: _T = self._thread.run(method(self._original, *args, **kwargs))
        return result

    return functools.update_wrapper(call, method)


def synchronous_iterator(
    method: Callable[Concatenate[Any, _P], AsyncGenerator[_T, None]],
) -> Callable[Concatenate[Any, _P], Generator[_T, None, None]]:
    """Return a method like `synchronous`, for a method that yields."""

    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> Generator[_T, None, None]:
        return iterate(self._thread, method(self._original, *args, **kwargs))

    return functools.update_wrapper(call, method)


def iterate(thread: LoopThread, items: AsyncGenerator[_T, None]) -> Generator[_T, None, None]:
    """Yield the items of an asynchronous generator, and close it."""
    try:
        while (item := thread.run(anext(items, _END))) is not _END:
            yield cast("_T", item)
    finally:
        thread.run(items.aclose())


async def parts_of(given: Iterable[_T]) -> AsyncGenerator[_T, None]:
    """Yield a caller's items. A thread waits for each, because the iterable may block."""
    left = iter(given)
    while (part := await asyncio.to_thread(next, left, _END)) is not _END:
        yield cast("_T", part)
