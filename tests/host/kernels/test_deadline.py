"""Deadlines, on a clock that the test moves."""

from __future__ import annotations

import asyncio

import pytest

from cellblock.host.kernels import deadline
from cellblock.host.kernels.deadline import Deadline


async def test_it_acts_when_its_time_has_come() -> None:
    acted = asyncio.Event()
    Deadline(0.01, lambda: 0.0, acted.set)
    assert not acted.is_set()
    await asyncio.wait_for(acted.wait(), 10)


async def test_what_is_excused_is_added() -> None:
    loop = asyncio.get_running_loop()
    uncounted_seconds, acted, began = 0.0, asyncio.Event(), loop.time()
    Deadline(0.01, lambda: uncounted_seconds, acted.set)
    uncounted_seconds = 0.1
    await asyncio.wait_for(acted.wait(), 10)
    assert loop.time() - began >= 0.11


async def test_what_was_excused_before_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    acted = asyncio.Event()
    Deadline(0.01, lambda: 1000.0, acted.set)
    await asyncio.wait_for(acted.wait(), 10)


async def test_it_waits_as_long_as_everything_is_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "_STEP", 0.001)
    loop = asyncio.get_running_loop()
    acted, began, looks = asyncio.Event(), loop.time(), 0

    def uncounted_seconds() -> float:
        nonlocal looks
        looks += 1
        return loop.time() - began if looks < 20 else 0.1

    Deadline(0.005, uncounted_seconds, acted.set)
    await asyncio.wait_for(acted.wait(), 10)
    assert looks >= 20


async def test_a_cancelled_one_does_nothing() -> None:
    acted = asyncio.Event()
    cancelled = Deadline(0.01, lambda: 0.0, acted.set)
    cancelled.cancel()
    later = asyncio.Event()
    Deadline(0.02, lambda: 0.0, later.set)
    await asyncio.wait_for(later.wait(), 10)
    assert not acted.is_set()
