"""Sessions: turns, results, questions, history."""

from __future__ import annotations

import asyncio

from cellblock import Host, Session


async def test_variables_persist_between_cells(session: Session) -> None:
    assert (await session.execute("x = 41")).status == "success"
    result = await session.execute("x + 1")
    assert result.return_value == "42"


async def test_concurrent_cells_run_in_the_order_they_were_asked_for(session: Session) -> None:
    await session.execute("order = []")
    await asyncio.gather(*(session.execute(f"order.append({number})") for number in range(20)))
    assert (await session.execute("order")).return_value == str(list(range(20)))


async def test_a_reset_right_after_a_death_goes_on_with_one_fresh_kernel(session: Session) -> None:
    await session.execute("x = 1")
    assert (await session.execute("import os; os._exit(1)")).status == "died"
    await session.reset()
    result = await session.execute("'x' in globals()")
    assert result.return_value == "False"
    assert result.recovery is None


async def test_closing_and_resetting_at_once_leaves_nothing(host: Host) -> None:
    session = host.session()
    await session.start()
    await session.execute("import os; os._exit(1)")
    await asyncio.gather(session.reset(), session.close(), return_exceptions=True)
    await session.close()
