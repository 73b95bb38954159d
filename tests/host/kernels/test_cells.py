"""Cells whose readers read no more, or leave; and deadlines, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from cellblock import Session
from cellblock.host.kernels import cells
from cellblock.host.kernels.cells import Deadline
from iterations import cancelled_after


async def test_a_reader_who_reads_no_more_keeps_nobody_waiting_past_the_timeout(session: Session) -> None:
    code = "import sys\nwhile True: sys.stdout.write('x' * 10000)"
    async with aclosing(session.stream(code, timeout=0.3)) as events:
        await anext(events)  # and not again
        assert (await session.execute("1 + 1")).return_value == "2"
        await session.reset()
        assert (await session.execute("2 + 2")).return_value == "4"


async def test_a_reader_who_reads_no_more_does_not_keep_a_reset_waiting(session: Session) -> None:
    async with aclosing(session.stream("print(1, flush=True)\nimport time; time.sleep(600)", timeout=None)) as events:
        await anext(events)
        await session.reset()
        assert (await session.execute("1 + 1")).return_value == "2"


async def test_leaving_a_stream_does_not_swallow_a_cancellation(session: Session) -> None:
    events = session.stream("print(1, flush=True)\nimport time; time.sleep(600)")
    await anext(events)
    reached = False

    async def leave() -> None:
        nonlocal reached
        await events.aclose()
        reached = True

    await cancelled_after(2, leave())
    assert not reached
    assert (await session.execute("1 + 1")).return_value == "2"


async def test_a_deadline_acts_when_its_time_has_come() -> None:
    acted = asyncio.Event()
    Deadline(0.01, lambda: 0.0, acted.set)
    assert not acted.is_set()
    await asyncio.wait_for(acted.wait(), 10)


async def test_time_that_does_not_count_is_added_to_a_deadline() -> None:
    loop = asyncio.get_running_loop()
    uncounted_seconds, acted, began = 0.0, asyncio.Event(), loop.time()
    Deadline(0.01, lambda: uncounted_seconds, acted.set)
    uncounted_seconds = 0.1
    await asyncio.wait_for(acted.wait(), 10)
    assert loop.time() - began >= 0.11


async def test_time_that_did_not_count_before_a_deadline_is_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    acted = asyncio.Event()
    Deadline(0.01, lambda: 1000.0, acted.set)
    await asyncio.wait_for(acted.wait(), 10)


async def test_a_deadline_waits_as_long_as_no_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "_STEP", 0.001)
    loop = asyncio.get_running_loop()
    acted, began, looks = asyncio.Event(), loop.time(), 0

    def uncounted_seconds() -> float:
        nonlocal looks
        looks += 1
        return loop.time() - began if looks < 20 else 0.1

    Deadline(0.005, uncounted_seconds, acted.set)
    await asyncio.wait_for(acted.wait(), 10)
    assert looks >= 20


async def test_a_cancelled_deadline_does_nothing() -> None:
    acted = asyncio.Event()
    cancelled = Deadline(0.01, lambda: 0.0, acted.set)
    cancelled.cancel()
    later = asyncio.Event()
    Deadline(0.02, lambda: 0.0, later.set)
    await asyncio.wait_for(later.wait(), 10)
    assert not acted.is_set()
