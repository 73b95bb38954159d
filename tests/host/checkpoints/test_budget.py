"""Automatic checkpoints: how the sessions of a host share the time that they take."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cellblock import Host
from cellblock.host.checkpoints.budget import Budget
from checkpoint_sessions import made, rolled


def test_only_a_few_begin_at_once() -> None:
    budget = Budget()
    waits = [budget.ask() for _ in range(1000)]
    assert waits[0] == 0
    assert waits.count(0) < 500  # more than one if this takes long
    assert max(waits) <= 0.02


async def test_sessions_whose_cells_end_together_take_turns_and_each_gets_one(host: Host, tmp_path: Path) -> None:
    async with made(host, tmp_path) as one, made(host, tmp_path) as two, made(host, tmp_path) as three:
        sessions = [one, two, three]
        await asyncio.gather(*(session.execute("x = 1") for session in sessions))
        for session in sessions:
            await rolled(session)
