"""Reliable close of owners of processes or descriptors, even if the caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, NoReturn


class AsyncOnly:
    """A base class for asynchronous context managers that gives a helpful error for ``with``."""

    _sync_twin: ClassVar[str] = ""
    """The name of the class for programs without an event loop; empty if none."""

    def __enter__(self) -> NoReturn:
        """Raise an error with the correct syntax.

        Raises:
            TypeError: Always.
        """
        name = type(self).__name__
        twin = f"; or use {self._sync_twin}, which needs no event loop" if self._sync_twin else ""
        raise TypeError(
            f"a {name} is an async context manager: write 'async with' instead of 'with', in an async function{twin}"
        )

    def __exit__(self, *_: object) -> None:
        """Never called: `__enter__` raises."""


class SyncOnly:
    """A base class for synchronous context managers that gives a helpful error for ``async with``."""

    async def __aenter__(self) -> NoReturn:
        """Raise an error with the correct syntax.

        Raises:
            TypeError: Always.
        """
        name = type(self).__name__
        raise TypeError(
            f"a {name} needs no event loop: write 'with' instead of 'async with', and no 'await'; or use "
            f"{name.removeprefix('Sync')}, whose methods are awaited"
        )

    async def __aexit__(self, *_: object) -> None:
        """Never called: `__aenter__` raises."""


class Closing:
    """One close operation, shared by all its callers.

    It runs in its own task, so that cancelling a waiter does not stop it. If it fails, or its loop shuts down, the next call
    tries again, so the operation must be idempotent.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        return self._task is not None

    async def finish(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await asyncio.shield(self.begin(close))

    def begin(self, close: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Start to close without waiting."""
        if self._task is None or _failed(self._task):
            self._task = asyncio.create_task(close())
        return self._task


def _failed(task: asyncio.Task[None]) -> bool:
    if not task.done():
        return task.get_loop().is_closed()
    return task.cancelled() or task.exception() is not None


async def in_thread(work: Callable[..., object], *arguments: object) -> None:
    """Run the last step of a close in a thread, or here if the interpreter is exiting and starts no threads.

    Args:
        work: The work, which may take long.
        arguments: Its arguments.
    """
    try:
        running = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
    except RuntimeError:  # from the executor: the work's own exceptions are in the future
        work(*arguments)
    else:
        await running
