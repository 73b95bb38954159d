"""Tasks that are always ready let the loop go on."""

from __future__ import annotations

import asyncio

import pytest

from cellblock.common import turns
from cellblock.common.turns import Turns


async def test_tasks_that_are_always_ready_work_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_SLICE", 0.0)  # one piece of work in each turn
    shared, done, most = Turns(), [0] * 20, 0

    async def work(number: int) -> None:
        for _ in range(10):
            await shared.give_way()
            done[number] += 1

    working = asyncio.gather(*map(work, range(20)))
    while not working.done():
        before = sum(done)
        await asyncio.sleep(0)
        most = max(most, sum(done) - before)
    assert most == 1
    assert done == [10] * 20


async def test_a_task_that_is_cancelled_takes_no_turn() -> None:
    shared = Turns()
    await shared.give_way()
    shared._until = 0.0
    waiting = [asyncio.create_task(shared.give_way()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.wait(waiting[1:], timeout=10)
    assert [task.cancelled() for task in waiting] == [True, False, False]
