"""Checkpoints that are made, restored and dropped by a caller that is cancelled at any moment, or while the session closes.

What is left after a test, `nothing_left_behind` counts: processes, descriptors, files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cellblock import CellblockError, Checkpoint, Host, Session
from iterations import cancelled_after
from processes import eventually
from suite import first_quick

_NUMBERS = (15,)
_ALL = range(80)


@pytest.fixture(params=[pytest.param(_NUMBERS, id="some"), pytest.param(_ALL, id="all", marks=pytest.mark.slow)])
def numbers(request: pytest.FixtureRequest) -> tuple[int, ...]:
    """After how many iterations operations are cancelled."""
    return tuple(request.param)


async def restore(session: Session) -> object:
    return await session.restore(session.checkpoints()[0])


async def undo(session: Session) -> object:
    return await session.undo()


async def fork(session: Session) -> None:
    branches = await session.fork(3)
    closing = asyncio.gather(*(branch.close() for branch in branches))
    try:
        await asyncio.shield(closing)
    finally:  # they are ours to close from here on, also if we are cancelled
        await closing


async def adopt(session: Session) -> None:
    (branch,) = await session.fork()
    try:
        await branch.execute("x = 3")
        await session.adopt(branch)
    finally:
        await branch.close()


async def drop(session: Session) -> None:
    await session.checkpoints()[-1].drop()


Operation = Callable[[Session], Coroutine[Any, Any, object]]
OPERATIONS: dict[str, Operation] = {
    "restore": restore,
    "undo": undo,
    "adopt": adopt,
    "checkpoint": lambda session: session.checkpoint(),
    "checkpoint of files": lambda session: session.checkpoint(files="copy"),
    "fork": fork,
    "drop": drop,
}


async def prepared(host: Host, workspace: Path) -> Session:
    """Return a session in which x was 1 at its first checkpoint, and is 2 now."""
    session = host.session(working_dir=workspace, images_dir=workspace, recovery="none")
    await session.start()
    await session.execute("x = 1")
    await session.checkpoint(files="copy")
    await session.execute("x = 2")
    await session.checkpoint()
    return session


def counted(host: Host) -> tuple[int, int]:
    return len(host.kernels.alive), len(host._sessions)


def line_of(session: Session) -> list[str]:
    return [entry.code for entry in session.cells.past.present]


STATES = {"1": ["x = 1"], "2": ["x = 1", "x = 2"], "3": ["x = 1", "x = 2", "x = 3"]}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.sampled(2)
async def test_after_an_operation_that_is_cancelled_anywhere_the_session_goes_on(
    zygote_host: Host, tmp_path: Path, name: str, numbers: tuple[int, ...]
) -> None:
    """Its history is the one of its state, and it makes checkpoints, and goes back to them."""
    before = counted(zygote_host)
    for number in numbers:
        session = await prepared(zygote_host, tmp_path)
        ended = await cancelled_after(number, OPERATIONS[name](session))
        line = line_of(session)
        value = (await session.execute("x")).return_value or ""
        assert (line, value) == (STATES[value], value), number
        checkpoint = await session.checkpoint()
        assert session.next_count == len(line) + 2, number
        await session.execute("x = 4")
        await session.restore(checkpoint)
        assert (await session.execute("x")).return_value == value, number
        await closed(session)
        await eventually(lambda: counted(zygote_host) == before)
        if ended:
            break


@pytest.mark.parametrize("name", first_quick(OPERATIONS, 3))
async def test_a_close_in_the_middle_of_an_operation_leaves_nothing(
    zygote_host: Host, tmp_path: Path, name: str, numbers: tuple[int, ...]
) -> None:
    before = counted(zygote_host)
    for number in numbers[::3]:
        session = await prepared(zygote_host, tmp_path)
        kept = session.checkpoints()
        running = asyncio.create_task(OPERATIONS[name](session))
        for _ in range(number):
            await asyncio.sleep(0)
        await session.close()
        with suppress(CellblockError):
            made = await running
            kept += [made] if isinstance(made, Checkpoint) else []  # which outlives its session
        for checkpoint in kept:
            await checkpoint.drop()
        await eventually(lambda: counted(zygote_host) == before)


async def closed(session: Session) -> None:
    """Drop what a session keeps, and close it."""
    for checkpoint in session.checkpoints():
        await checkpoint.drop()
    await session.close()
