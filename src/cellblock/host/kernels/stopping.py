"""Stops cells and questions by increasingly strong means, until their code no longer runs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable

from cellblock.common.tasks import despite_cancellation
from cellblock.host.kernels.cell import Cell
from cellblock.host.kernels.kernel import Kernel
from cellblock.model import Recovery, Status
from cellblock.wire.messages import Answer, Park, Question

_SETTLING = 0.5  # seconds for a worker on a busy machine to read its cell
_QUESTION_TIMEOUT = 10.0  # seconds for a completion or an inspection

# The means to stop a cell: name, action, and seconds before the next one.
_LADDER: tuple[tuple[Recovery, Callable[[Kernel], Awaitable[None]], float], ...] = (
    ("interrupted", Kernel.interrupt, 1.0),
    ("interrupted_twice", Kernel.interrupt, 0.5),
    ("killed_children", Kernel.kill_children, 0.5),
    ("restarted", Kernel.kill, 1.0),
)
_ENDLESS_QUESTION = (
    "code that completions and descriptions run, such as __dir__ of an object, neither ended nor could be interrupted: "
    "the kernel was killed"
)
_ENDLESS_COPY = "it did not answer when a checkpoint was made, because code changed modules that checkpoints need"
_PATIENCES = (0.1, 0.3, 0.6, 1.0)
"""Seconds after each interrupt of a question. Several: the first may come before the worker has read the question, or hit one
part of IPython's completer, which continues with the next part."""


# -- cells -------------------------------------------------------------------------------------------------------------


def begin_stop(kernel: Kernel, cell: Cell, reason: Status) -> None:
    """Start to stop a cell. Only the first reason counts. `cell.ended` is set at its end."""
    cell.begin_stop(reason, functools.partial(escalate, kernel, cell))


async def kill(kernel: Kernel, cell: Cell, reason: Status) -> None:
    """Stop a cell by ending its kernel."""
    cell.stopped_for(reason)
    await kernel.kill()
    await cell.ended.wait()


async def leave(kernel: Kernel, cell: Cell) -> None:
    """Wait until a cell has ended and nothing is in flight for it. Stop it if necessary."""
    try:
        # If it has not ended, the caller was cancelled, or a stream's reader has left.
        begin_stop(kernel, cell, "interrupted")
        # Even if it has ended: a signal on its way must not hit the next cell.
        await despite_cancellation(cell.escalating)
    finally:
        await cell.wait_unanswered()


async def escalate(kernel: Kernel, cell: Cell) -> None:
    """Stop a cell by increasingly strong means."""
    # The worker ignores a signal that arrives before it has read the cell, as late for the previous cell.
    await kernel.begun(_SETTLING)
    for name, act, patience in _LADDER:
        cell.stopped_by(name)
        kernel.stopping(cell.reason, name)
        await act(kernel)
        try:
            await asyncio.wait_for(cell.ended.wait(), patience)
            return
        except TimeoutError:
            continue
    kernel.abandon()


# -- questions ---------------------------------------------------------------------------------------------------------


async def answer_to(kernel: Kernel, question: Question, unwanted: asyncio.Future[None] | None = None) -> Answer:
    """Ask a kernel a question. On return or cancellation, the kernel accepts cells or has ended.

    Args:
        kernel: The kernel.
        question: The question.
        unwanted: Done when the answer is no longer wanted, which interrupts the kernel.

    Raises:
        KernelDiedError: The kernel has ended.
    """
    await kernel.wake()
    answer = kernel.ask(question)
    try:
        # Inspecting an object runs its own code, which may do anything, or never end.
        until = (answer,) if unwanted is None else (answer, unwanted)
        await asyncio.wait(until, timeout=_QUESTION_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not answer.done():
            reason = _ENDLESS_COPY if isinstance(question, Park) else _ENDLESS_QUESTION
            await despite_cancellation(asyncio.create_task(_stop_answering(kernel, answer, reason)))
    return answer.result()


async def _stop_answering(kernel: Kernel, answer: asyncio.Future[Answer], reason: str) -> None:
    for patience in _PATIENCES:
        await kernel.interrupt()
        await asyncio.wait([answer], timeout=patience)
        if answer.done():
            return
    await kernel.kill(reason)
    await asyncio.wait([answer], timeout=1.0)
    if not answer.done():
        kernel.abandon()
