"""Cancels an operation after a number of iterations of its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def cancelled_after(iterations: int, operation: Coroutine[Any, Any, object]) -> bool:
    """Run an operation and cancel it after so many iterations of the loop; return whether it had ended before.

    Iterations in which nothing happens are not made: the loop sleeps until there is something to do. So their number is that
    of the steps of the operation, and of the tasks that work for it, and not of the time that it takes.
    """
    loop: Any = asyncio.get_running_loop()
    task = asyncio.ensure_future(operation)
    step, made = loop._run_once, 0

    def counted() -> None:
        nonlocal made
        if made == iterations:
            task.cancel()
        made += 1
        step()

    loop._run_once = counted
    try:
        await asyncio.wait([task])
    finally:
        del loop._run_once
    if task.cancelled():
        return False
    task.exception()
    return made <= iterations
