"""What a session's processes come from is killed while the session is forked: the caller hears of it, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from cellblock import CellblockError, Host, Session
from checkpoint_sessions import value
from processes import alive, eventually


async def fork_while_killing(host: Host, session: Session, victim: int, turns: int) -> None:
    """Fork a session, kill a process meanwhile, and check what has become of the branches."""
    forking = asyncio.create_task(session.fork(4, return_exceptions=True))
    for _ in range(turns):
        await asyncio.sleep(0)
    os.kill(victim, signal.SIGKILL)
    try:
        branches = await asyncio.wait_for(forking, 20)
    except CellblockError:
        return
    await eventually(lambda: not alive(victim))
    for branch in branches:
        if isinstance(branch, BaseException):
            assert isinstance(branch, CellblockError), branch
            continue
        result = await branch.execute("x")
        assert (result.status, result.state_lost) == ("error", True)  # it is a fresh kernel, and says so
        await branch.close()


@pytest.mark.slow
@pytest.mark.parametrize("turns", [1, 10, 30, 60, 100])
async def test_a_fork_whose_processes_are_killed_ends_and_leaves_nothing(tmp_path: Path, turns: int) -> None:
    async with Host(isolate="none") as host:
        async with host.session(images_dir=tmp_path, recovery="none") as session:
            await session.execute("x = 1")
            init = int(await value(session, "import os; os.getppid()"))
            await fork_while_killing(host, session, init, turns)
            result = await session.execute("y = 2; y")
            assert (result.status, result.return_value) == ("success", "2")
            assert result.state_lost
            # It can be forked again.
            for branch in await session.fork(2):
                assert await value(branch, "y") == "2"
                await branch.close()
        await eventually(lambda: not host.kernels.alive and not host.kernels.families)
