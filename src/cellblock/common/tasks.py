"""Races of coroutines, and waits that a cancellation does not cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first_of(*work: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Run coroutines until one of them ends, and cancel the others.

    Returns:
        Their ended tasks. `asyncio.Task.cancelled` tells which were cancelled.
    """
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await despite_cancellation(*tasks)
    return tasks


async def despite_cancellation(*tasks: asyncio.Task[Any] | None) -> None:
    """Wait for internal tasks of a few seconds, even while the waiter is being cancelled.

    Raises:
        asyncio.CancelledError: The waiter was cancelled. Raised when the tasks are done.
    """
    cancelled: asyncio.CancelledError | None = None
    while running := [task for task in tasks if task is not None and not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
