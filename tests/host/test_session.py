"""Sessions: turns, results, questions, history."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from cellblock import CodeExecutionChunk, CodeExecutionResult, CodeExecutor, Host, Session
from processes import eventually
from suite import first_quick

_MOST_MODULES = 22


async def test_a_cell_enters_few_modules_of_the_host(executor: CodeExecutor, native_host: Host, tmp_path: Path) -> None:
    """Each module on the way of a cell is one more to read for whoever follows the cell."""
    await _check_few_modules(executor)
    async with CodeExecutor(host=native_host, images_dir=tmp_path) as sandboxed:
        await _check_few_modules(sandboxed)


async def _check_few_modules(executor: CodeExecutor) -> None:
    all_entered = list[set[str]]()
    for _ in range(20):  # the first one starts more than a cell, and timers of other parts of the session may be due
        all_entered.append(await _entered(executor.execute("1 + 1")))
        if len(all_entered[-1]) <= _MOST_MODULES:
            return
        await asyncio.sleep(0.05)
    fewest, *_ = sorted(all_entered, key=len)
    pytest.fail(f"a cell enters {sorted(fewest)}")


async def _entered(request: Coroutine[Any, Any, object]) -> set[str]:
    """Return the modules of the host that a request enters."""
    found: set[str] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and "/cellblock/host/" in path:
            found.add(path.partition("/cellblock/host/")[2])

    sys.setprofile(profile)
    try:
        await request
    finally:
        sys.setprofile(None)
    return found


async def test_an_undo_enters_few_modules_of_the_host(host: Host, tmp_path: Path) -> None:
    async with CodeExecutor(host=host, sandbox=False, working_dir=tmp_path) as executor:
        await executor.execute("x = 1")
        all_entered = list[set[str]]()
        for number in range(2):
            await executor.execute(f"open('file', 'w').write('{number}')")
            await eventually(lambda: [one.files for one in executor.checkpoints()] == ["copy"] * 2, 60)
            await asyncio.sleep(0.05)
            all_entered.append(await _entered(executor.undo()))
    fewest = min(all_entered, key=len)
    assert len(fewest) <= 32, sorted(fewest)


async def test_a_byte_order_mark_is_no_part_of_the_code(session: Session) -> None:
    for code in ("\ufeffx = 1\nx", "\ufeff```python\n1\n```", "\ufeff%%capture\npass\n", "\ufeff!true"):
        assert (await session.execute(code)).ok
        assert "\ufeff" not in session.history()[-1].code
        (result,) = [item async for item in session.stream(code, chunks=False)]
        assert result.ok  # type: ignore[union-attr]


async def test_concurrent_cells_run_in_the_order_they_were_asked_for(session: Session) -> None:
    await session.execute("order = []")
    await asyncio.gather(*(session.execute(f"order.append({number})") for number in range(8)))
    assert (await session.execute("order")).return_value == str(list(range(8)))


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


@pytest.mark.parametrize(
    ("how", "said"),
    first_quick(
        [
            ("reset", "The session was restarted: variables and imports are lost."),
            ("restore", "The session restores an earlier state."),
            ("interrupt", "Variables are kept."),
            ("close", "The session was ended."),
        ],
        2,
    ),
)
async def test_what_is_stopped_says_what_becomes_of_the_session(host: Host, how: str, said: str) -> None:
    async with host.session() as session:
        checkpoint = await session.checkpoint()
        ends = {
            "interrupt": session.interrupt,
            "reset": session.reset,
            "restore": lambda: session.restore(checkpoint),
            "close": session.close,
        }
        ending = None
        async for event in session.stream("import time; print('begun', flush=True); time.sleep(100)"):
            if isinstance(event, CodeExecutionChunk) and ending is None:
                ending = asyncio.ensure_future(ends[how]())
            if isinstance(event, CodeExecutionResult):
                assert event.status == "interrupted"
                assert event.error is not None
                assert event.error.evalue.startswith("The cell was interrupted")
                assert event.error.evalue.endswith(said)
        assert ending is not None
        await ending
