"""Coroutines of which the first that ends decides."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first_of(*work: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Run coroutines until one of them has ended, and cancel the others.

    Returns:
        Their tasks, of which all have ended: `asyncio.Task.cancelled` tells those that were cancelled.
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
    """Wait for the end of tasks, also if that is cancelled once more; then it is cancelled at the end."""
    cancelled: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
