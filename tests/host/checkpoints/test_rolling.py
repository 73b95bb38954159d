"""Automatic checkpoints: how the sessions of a host share the time that they take."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cellblock import Host
from cellblock.host.checkpoints.rolling import Pace
from checkpoint_sessions import made, rolled


async def test_no_other_begins_while_one_is_made_nor_right_after_it() -> None:
    pace, done = Pace(), asyncio.Event()
    assert pace.ask() == 0
    making = asyncio.create_task(pace.run(_wait(done)))
    assert 0 < pace.ask() <= 1
    await asyncio.sleep(0.1)  # the pause is nine times as long
    done.set()
    await making
    assert 0 < pace.ask() <= 1


async def test_one_that_fails_leaves_the_turn_to_others() -> None:
    pace = Pace()
    assert pace.ask() == 0
    making = asyncio.create_task(pace.run(_wait(asyncio.Event())))
    await asyncio.sleep(0)
    making.cancel()
    await asyncio.wait([making])
    assert pace.ask() < 1


async def test_sessions_whose_cells_end_together_take_turns_and_each_gets_one(host: Host, tmp_path: Path) -> None:
    async with made(host, tmp_path) as one, made(host, tmp_path) as two, made(host, tmp_path) as three:
        sessions = [one, two, three]
        await asyncio.gather(*(session.execute("x = 1") for session in sessions))
        for session in sessions:
            await rolled(session)


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
