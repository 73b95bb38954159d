"""Coroutines of which the first that ends decides."""

from __future__ import annotations

import asyncio

import pytest

from cellblock.common.tasks import first_of


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
