"""How a cell is stopped: by ever stronger means, until its code no longer runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cellblock.host.cell import Cell
from cellblock.host.kernel import Kernel
from cellblock.model import Recovery

_SETTLING = 0.5  # seconds that a worker on a busy machine may take to read its cell

# How a cell is stopped: what is done, what it is called, and how many seconds it is given to work.
_LADDER: tuple[tuple[Recovery, Callable[[Kernel], Awaitable[None]], float], ...] = (
    ("interrupted", Kernel.interrupt, 1.0),
    ("interrupted_twice", Kernel.interrupt, 0.5),
    ("killed_children", Kernel.kill_children, 0.5),
    ("restarted", Kernel.kill, 1.0),
)


async def escalate(kernel: Kernel, cell: Cell) -> None:
    """Stop a cell, by ever stronger means."""
    # A signal that comes before the worker has read the cell is taken for one that is late for the cell before, and ignored.
    await kernel.begun(_SETTLING)
    for name, act, patience in _LADDER:
        cell.recovery = name
        await act(kernel)
        try:
            await asyncio.wait_for(cell.ended.wait(), patience)
            return
        except TimeoutError:
            continue
    kernel.abandon()


async def despite_cancellation(task: asyncio.Task[None] | None) -> None:
    """Wait for a task of ours that takes a few seconds at most, in a block that a cancellation is leaving already."""
    while task is not None and not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue  # the one that brought us here goes on when this returns
