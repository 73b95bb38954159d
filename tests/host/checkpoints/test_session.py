"""What sessions do with checkpoints: branch, adopt, go back while something runs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from cellblock import Host, InvalidInputError, Session
from cellblock.host.kernels.kernel import Kernel
from cellblock.launch.init import system_v
from checkpoint_sessions import made, value
from processes import eventually


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
    await eventually(lambda: branches[1].cells.running)
    await branches[1].interrupt()
    assert (await running).status == "interrupted"
    with pytest.raises(InvalidInputError, match="itself"):
        await any_session.adopt(any_session)
    await any_session.adopt(branches[2])
    assert await value(any_session, "x") == "3"
    for branch in branches:
        await branch.close()


@pytest.mark.parametrize(
    "imported", ["numpy.random", pytest.param("numpy", marks=pytest.mark.slow)]
)  # which loads numpy.random when it is first used
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
    await eventually(lambda: session.cells.running)
    await session.restore(checkpoint)
    assert (await running).status == "interrupted"
    assert await value(session, "x") == "1"
    await checkpoint.drop()


async def test_a_kernel_that_holds_nothing_of_its_own_is_left_to_end_beside_the_next_one(any_session: Session) -> None:
    await any_session.execute("x = 1")
    checkpoint = await any_session.checkpoint()
    quiet = False
    for number in range(20):  # on a busy machine, one may not have stopped in time, and is waited for
        left = any_session._kernels.current
        assert left is not None
        await any_session.restore(checkpoint)
        quiet = quiet or left.control.quiet.done()
        assert not left.family.branched  # or the next cell could not ask about hosts
        assert await value(any_session, "x") == "1"
        if quiet and number > 2:
            break
    # Without an IPC namespace of its own, the end of a kernel may change any semaphore of the machine.
    assert quiet or ("isolate=native" not in repr(any_session) and system_v.sets_of_semaphores())


@pytest.mark.parametrize("isolate", [pytest.param("none", marks=pytest.mark.slow), "native"])
async def test_a_port_that_was_taken_since_is_free_at_once(
    isolate: str, zygote_host: Host, native_host: Host, tmp_path: Path
) -> None:
    async with made(zygote_host if isolate == "none" else native_host, tmp_path, "none") as session:
        await session.execute("import socket")
        checkpoint = await session.checkpoint()
        port = await value(session, "s = socket.create_server(('127.0.0.1', 0))\ns.getsockname()[1]")
        for _ in range(2):
            await session.restore(checkpoint)
            assert await value(session, f"s = socket.create_server(('127.0.0.1', {port}))\ns.getsockname()[1]") == port


async def test_a_kernel_with_processes_of_its_own_is_waited_for(any_session: Session) -> None:
    checkpoint = await any_session.checkpoint()
    for _ in range(3):
        await any_session.execute("import subprocess\nchild = subprocess.Popen(['sleep', '60'])")
        left = any_session._kernels.current
        assert left is not None
        await any_session.restore(checkpoint)
        assert (left.control.quiet.done(), left.control.gone.done()) == (False, True)


async def test_an_error_at_the_end_of_a_kernel_that_was_left_is_got_over(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.execute("x = 1")
    checkpoint = await session.checkpoint()
    left = session._kernels.current
    assert left is not None
    leave, failures = left.family.leave, [OSError("once")]

    async def fail_once(kernel: Kernel) -> None:
        if failures:
            raise failures.pop()
        await leave(kernel)

    monkeypatch.setattr(left.family, "leave", fail_once)
    with suppress(OSError):  # unless the kernel was quiet, and is waited for later
        await session.restore(checkpoint)
    await eventually(lambda: not failures)
    for _ in range(2):
        await session.restore(checkpoint)
        assert await value(session, "x") == "1"


async def test_threads_of_a_state_that_was_left_write_no_more(any_session: Session, tmp_path: Path) -> None:
    checkpoint = await any_session.checkpoint()
    writing = """
import threading, time

def write():
    while True:
        with open("log", "a") as file:
            file.write(".")

threading.Thread(target=write, daemon=True).start()
while not os.path.exists("log"):
    time.sleep(0.01)
"""
    await any_session.execute(f"import os\n{writing}")
    await any_session.restore(checkpoint)
    size = (tmp_path / "log").stat().st_size
    assert await value(any_session, "__import__('os').stat('log').st_size") == str(size)
    assert (tmp_path / "log").stat().st_size == size
