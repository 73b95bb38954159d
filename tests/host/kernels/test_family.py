"""The kernels and copies below one init: what ends, and what is told of it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import CheckpointError, Host, KernelDiedError, Session
from cellblock.wire.copies import Keep
from checkpoint_sessions import made, value
from processes import asleep, children, eventually


@pytest.fixture
async def session(host: Host, tmp_path: Path) -> AsyncIterator[Session]:
    """A session without a sandbox, which makes no checkpoint by itself."""
    async with made(host, tmp_path, "none") as session:
        yield session


async def test_many_that_are_dropped_at_once_all_end(session: Session) -> None:
    """However little of it init can be told at a time."""
    kept = [await session.checkpoint() for _ in range(12)]
    init = int(await value(session, "__import__('os').getppid()"))
    connection = kept[0].moment.copy.family._connection
    assert connection is not None
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    os.kill(init, signal.SIGSTOP)
    for checkpoint in kept:
        checkpoint.discard()
    os.kill(init, signal.SIGCONT)
    await eventually(lambda: len(children(init)) == 1)


async def test_a_copy_outlives_what_was_said_before_it_was_asked_for(session: Session) -> None:
    """Init may read of the copy first: it has another connection."""
    first = await session.checkpoint()
    init = int(await value(session, "__import__('os').getppid()"))
    before = children(init)
    os.kill(init, signal.SIGSTOP)
    first.moment.copy.family._tell(Keep((first.moment.copy.number,)))  # as a host that takes over
    making = asyncio.create_task(session.checkpoint())
    await eventually(lambda: any(asleep(copy) for copy in children(init) - before))  # it has registered, and waits
    os.kill(init, signal.SIGCONT)
    made = await making
    await value(session, "1")
    await session.checkpoint()  # init has read everything
    assert made.alive
    assert first.alive


async def test_a_copy_of_a_kernel_that_dies_meanwhile_keeps_nobody_waiting(session: Session) -> None:
    """The next cell waits for an automatic one."""
    await value(session, "1")
    kernel = session._kernels.current
    assert kernel is not None

    async def die(_question: object) -> None:
        kernel.family.kill()

    with pytest.raises(KernelDiedError, match="while it was copied"):
        await kernel.family.copy(kernel.control, die)
    assert await value(session, "6 * 7") == "42"


async def test_the_end_of_an_unfinished_copy_is_reported_at_once(session: Session) -> None:
    """Code of the session may kill it."""
    init = int(await value(session, "__import__('os').getppid()"))
    before = children(init)
    os.kill(init, signal.SIGSTOP)
    making = asyncio.create_task(session.checkpoint())

    def registered() -> list[int]:
        """Return the copies that have a name of their own, which they get just before they register, and wait."""
        new = children(init) - before
        return [copy for copy in new if Path(f"/proc/{copy}/comm").read_text() == "checkpoint\n" and asleep(copy)]

    await eventually(registered)
    for copy in registered():
        os.kill(copy, signal.SIGKILL)
    os.kill(init, signal.SIGCONT)
    with pytest.raises(CheckpointError, match=r"killed before it was ready, .* free memory, then try again"):
        await making
    assert await value(session, "6 * 7") == "42"


async def test_what_is_killed_below_is_noticed(native_host: Host, tmp_path: Path) -> None:
    """Code of the session may kill what is its own."""
    async with made(native_host, tmp_path, "none") as session:
        await session.execute("x = 1")
        checkpoint = await session.checkpoint()
        await session.execute(
            """
            import os, signal
            for name in os.listdir("/proc"):
                if name.isdigit() and int(name) not in (1, os.getpid()):
                    os.kill(int(name), signal.SIGKILL)
            """
        )
        await eventually(lambda: not checkpoint.alive)
        with pytest.raises(CheckpointError, match="no longer exists"):
            await session.restore(checkpoint)
        assert await value(session, "x") == "1"


async def test_the_end_of_init_ends_its_checkpoints(host: Host, tmp_path: Path) -> None:
    async with made(host, tmp_path) as session:
        checkpoint = await session.checkpoint()
        init = int(await value(session, "import os; os.getppid()"))
        os.kill(init, signal.SIGKILL)
        await eventually(lambda: not checkpoint.alive)
        assert await value(session, "1") == "1"
        await session.execute("x = 1")
        await session.restore(await session.checkpoint())
        assert await value(session, "x") == "1"
