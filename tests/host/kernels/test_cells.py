"""Cells whose readers read no more, or leave."""

from __future__ import annotations

from contextlib import aclosing

from cellblock import Session
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
