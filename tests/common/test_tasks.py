"""Coroutines of which the first that ends decides."""

from __future__ import annotations

import asyncio

import pytest

from cellblock.common.tasks import despite_cancellation, first_of


async def endless(ended: asyncio.Event) -> None:
    """Wait until it is cancelled, and some time longer."""
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        ended.set()


async def number() -> int:
    return 1


async def fails() -> None:
    raise ValueError


async def test_when_the_first_has_ended_the_others_are_cancelled_and_have_ended() -> None:
    ended = asyncio.Event()
    first, second = await first_of(number(), endless(ended))
    assert (first.result(), second.cancelled(), ended.is_set()) == (1, True, True)


async def test_one_that_fails_ends_the_others_too() -> None:
    ended = asyncio.Event()
    second, first = await first_of(endless(ended), fails())
    assert (type(first.exception()), second.cancelled(), ended.is_set()) == (ValueError, True, True)


async def test_whoever_is_cancelled_leaves_none_behind() -> None:
    both = asyncio.Event(), asyncio.Event()
    waiting = asyncio.create_task(first_of(*map(endless, both)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert all(ended.is_set() for ended in both)


async def test_a_cancelled_waiter_learns_of_it_when_all_tasks_are_done() -> None:
    first, second = asyncio.Event(), asyncio.Event()
    tasks = [asyncio.create_task(event.wait()) for event in (first, second)]
    waiting = asyncio.create_task(despite_cancellation(*tasks, None))
    await asyncio.sleep(0)
    for event in (first, second):
        waiting.cancel()
        await asyncio.sleep(0.01)
        assert not waiting.done()
        event.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert all(task.done() and not task.cancelled() for task in tasks)
