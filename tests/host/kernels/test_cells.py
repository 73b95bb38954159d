"""Cells whose readers read no more, or leave; and deadlines, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from cellblock import CodeExecutionChunk, CodeExecutionResult, Host, Session
from cellblock.errors import SnapshotError
from cellblock.host.kernels import cells
from cellblock.host.kernels.cell import Cell
from cellblock.host.kernels.cells import Deadline, KeptResults
from cellblock.model import OutputItem
from iterations import cancelled_after


@pytest.mark.slow
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


@pytest.mark.parametrize("begun", [False, True])
async def test_cells_that_wait_for_their_turn_are_stopped_by_a_reset_and_later_ones_run(session: Session, begun: bool) -> None:
    """Also if none has begun yet: a reset that came a moment too early would wait for them until their time limit."""
    waiting = [asyncio.create_task(session.execute("import time; time.sleep(600)", timeout=None)) for _ in range(3)]
    while begun and session.history() == [] and not session.cells.current:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    resetting = asyncio.create_task(session.reset())
    await asyncio.sleep(0)
    later = asyncio.create_task(session.execute("2 + 2"))
    async with asyncio.timeout(60):
        stopped = await asyncio.gather(*waiting)
        await resetting
        assert (await later).return_value == "4"
    assert [result.status for result in stopped] == ["interrupted"] * 3
    assert "The session was restarted" in str(stopped[-1])


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


async def test_readers_of_a_stream_get_the_advice_in_the_result(native_host: Host, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path) as session:
        code = "import sys; print('curl: (6) Could not resolve host: a.example', file=sys.stderr)"
        *chunks, result = [event async for event in session.stream(code)]
    assert isinstance(result, CodeExecutionResult)
    assert "[cellblock] this session has no network: " in result.stderr
    assert "".join(chunk.text for chunk in chunks if isinstance(chunk, CodeExecutionChunk)) == result.stderr


@pytest.mark.parametrize("where", ["turn_begins", "forget_dead"])
async def test_a_cell_whose_kernel_dies_before_it_begins_runs_in_the_next_one(
    host: Host, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """In every wait of a cell's turn, after which nobody has sent it yet."""
    async with host.session() as session:
        await session.execute("x = 1")
        kernels = session._kernels
        waits = session._checkpoints.automatic if where == "turn_begins" else kernels
        wait, killed = getattr(waits, where), False

        async def wait_and_kill() -> None:
            nonlocal killed
            await wait()
            if not killed:
                killed, kernel = True, kernels.current
                assert kernel is not None
                await kernel.kill("for the test")

        monkeypatch.setattr(waits, where, wait_and_kill)
        begun: list[str] = []
        cell = Cell("x + 1", None, queue_limit=None, on_begin=begun.append)
        result = await session.cells.run(cell, 60)
        assert killed
        assert (result.status, result.return_value) == ("success", "2")
        assert begun == ["", kernels.current and f"{kernels.current.number}/0"]


async def test_what_fails_after_a_death_does_not_take_the_cells_result(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_dead: object) -> None:
        raise SnapshotError("no room")

    await session.execute("x = 1")
    with monkeypatch.context() as broken:
        broken.setattr(session._checkpoints.crashes, "recover", fail)
        result = await session.execute("import os; os._exit(3)")
        assert (result.status, result.exit_status) == ("died", 3)
    assert (await session.execute("1 + 1")).return_value == "2"


@pytest.mark.parametrize(("before", "later"), [(0.0, 0.0), (0.0, 0.1), (1000.0, 1000.0)])
async def test_a_deadline_acts_when_its_time_has_come_without_what_did_not_count_since(before: float, later: float) -> None:
    loop = asyncio.get_running_loop()
    uncounted_seconds, acted, began = before, asyncio.Event(), loop.time()
    Deadline(0.01, lambda: uncounted_seconds, acted.set)
    assert not acted.is_set()
    uncounted_seconds = later
    await asyncio.wait_for(acted.wait(), 10)
    assert loop.time() - began >= 0.01 + later - before


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
    acted, later = asyncio.Event(), asyncio.Event()
    Deadline(0.01, lambda: 0.0, acted.set).cancel()
    Deadline(0.02, lambda: 0.0, later.set)
    await asyncio.wait_for(later.wait(), 10)
    assert not acted.is_set()


def test_old_results_make_room_for_new_ones() -> None:
    kept = KeptResults(10_000)
    first = kept.keep(CodeExecutionResult(text="x" * 4000))
    second = kept.keep(CodeExecutionResult(outputs=[OutputItem("display_data", data={"a": b"x" * 2000})]))
    assert (first.result is None, second.result is None) == (False, False)
    third = kept.keep(CodeExecutionResult(text="x" * 1000))
    assert (first.result is None, second.result is None, third.result is None) == (True, False, False)
    assert kept.keep(CodeExecutionResult(text="x" * 20_000)).result is None
    assert third.result is None
    assert kept.keep(CodeExecutionResult()).result is not None
    assert KeptResults(0).keep(CodeExecutionResult()).result is None
