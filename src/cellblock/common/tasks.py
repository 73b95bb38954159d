"""Races of coroutines."""

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
        await _all_ended(tasks)
    return tasks


async def _all_ended(tasks: list[asyncio.Task[Any]]) -> None:
    """Wait for the end of tasks, even if cancelled again. A cancellation is then raised at the end."""
    cancelled: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
