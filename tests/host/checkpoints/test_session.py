"""What sessions do with checkpoints: branch, adopt, go back while something runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Host, InvalidInputError, Session
from checkpoint_sessions import made, value
from processes import eventually


@pytest.fixture
async def session(host: Host, tmp_path: Path) -> AsyncIterator[Session]:
    """A session without a sandbox, which makes no checkpoint by itself."""
    async with made(host, tmp_path, "none") as session:
        yield session


async def test_branches_are_independent_and_the_best_is_adopted(any_session: Session) -> None:
    await any_session.execute("import os, random\nx = 0")
    branches = await any_session.fork(3)
    ends = await asyncio.gather(
        *(value(branch, f"x = {n}\n(x, random.random(), os.getpid())") for n, branch in enumerate(branches, 1))
    )
    found = [eval(end) for end in ends]
    assert [x for x, _, _ in found] == [1, 2, 3]
    assert len({drawn for _, drawn, _ in found}) == len({pid for _, _, pid in found}) == 3
    # Each is stopped and dies alone.
    await branches[0].execute("os.kill(os.getpid(), 9)")
    running = asyncio.create_task(branches[1].execute("import time; time.sleep(60)"))
    await eventually(lambda: branches[1].reader.running)
    await branches[1].interrupt()
    assert (await running).status == "interrupted"
    with pytest.raises(InvalidInputError, match="itself"):
        await any_session.adopt(any_session)
    await any_session.adopt(branches[2])
    assert await value(any_session, "x") == "3"
    for branch in branches:
        await branch.close()


@pytest.mark.parametrize("imported", ["numpy.random", "numpy"])  # which loads numpy.random when it is first used
async def test_branches_share_no_random_state_unless_they_are_to(session: Session, imported: str) -> None:
    await session.execute(f"import random, {imported}")
    own, seeded = await session.fork(2), await session.fork(2, seeds=[7, 7])
    same = await session.fork(2, same_random_state=True)
    branches = (*own, *seeded, *same)
    for generator in ("random.random()", "numpy.random.random()"):
        drawn = [await value(branch, generator) for branch in branches]
        assert drawn[2] == drawn[3] != drawn[4] == drawn[5]
        assert len({*drawn}) == 4
    await asyncio.gather(*(branch.close() for branch in branches))


async def test_branches_share_no_pair_of_sockets(any_session: Session) -> None:
    await any_session.execute("import socket; one, other = socket.socketpair(); other.setblocking(False)")
    left, right = await any_session.fork(2)
    await left.execute("one.send(b'left')")
    for elsewhere in (right, any_session):
        result = await elsewhere.execute("other.recv(9)")
        assert result.error is not None
        assert result.error.ename == "BlockingIOError"
    assert await value(left, "other.recv(9)") == "b'left'"
    await asyncio.gather(left.close(), right.close())


async def test_restoring_stops_what_runs(session: Session) -> None:
    await session.execute("x = 1")
    checkpoint = await session.checkpoint()
    running = asyncio.create_task(session.execute("x = 2\nimport time; time.sleep(60)"))
    await eventually(lambda: session.reader.running)
    await session.restore(checkpoint)
    assert (await running).status == "interrupted"
    assert await value(session, "x") == "1"
    await checkpoint.drop()
