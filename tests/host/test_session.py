"""Sessions: turns, results, questions, history."""

from __future__ import annotations

import asyncio

from cellblock import Session


async def test_variables_persist_between_cells(session: Session) -> None:
    assert (await session.execute("x = 41")).status == "success"
    result = await session.execute("x + 1")
    assert result.return_value == "42"


async def test_concurrent_cells_run_in_the_order_they_were_asked_for(session: Session) -> None:
    await session.execute("order = []")
    await asyncio.gather(*(session.execute(f"order.append({number})") for number in range(20)))
    assert (await session.execute("order")).return_value == str(list(range(20)))
