"""Checkpoints of real kernels, in each kind of sandbox: what they hold, and what becomes of them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

from cellblock import CheckpointError, Host, InvalidInputError, Policy, Resources, Rolling, Session
from processes import children, eventually

QUICK = Rolling(after=0.001)


@pytest.fixture(params=["none", "native", "landlock"])
def any_host(request: pytest.FixtureRequest, zygote_host: Host, native_host: Host, landlock_host: Host) -> Host:
    """A warm host of each kind of isolation."""
    return {"none": zygote_host, "native": native_host, "landlock": landlock_host}[request.param]


@pytest.fixture
async def any_session(any_host: Host, tmp_path: Path) -> AsyncIterator[Session]:
    """A session in each kind of isolation, which makes no checkpoint by itself."""
    async with made(any_host, tmp_path, "none") as session:
        yield session


@pytest.fixture
async def session(host: Host, tmp_path: Path) -> AsyncIterator[Session]:
    """A session without a sandbox, which makes no checkpoint by itself."""
    async with made(host, tmp_path, "none") as session:
        yield session


@asynccontextmanager
async def made(host: Host, workspace: Path, recovery: Rolling | Literal["none"] = QUICK) -> AsyncIterator[Session]:
    """Make a session, and drop its checkpoints in the end: they would live as long as somebody has them."""
    async with host.session(working_dir=workspace, images_dir=workspace, recovery=recovery) as session:
        yield session
        for checkpoint in session.checkpoints():
            await checkpoint.drop()


async def value(session: Session, code: str) -> str:
    """Return the value of an expression in a session."""
    result = await session.execute(code)
    assert result.ok, result.text
    return result.return_value or ""


async def rolled(session: Session) -> None:
    """Wait until the session's last cell has a checkpoint."""

    def made() -> bool:
        checkpoints = session.checkpoints()
        return bool(checkpoints) and checkpoints[-1].execution_count == session.next_count - 1

    await eventually(made)


async def test_a_session_goes_back_to_a_checkpoint_any_number_of_times(any_session: Session, tmp_path: Path) -> None:
    session = any_session
    (tmp_path / "below").mkdir()
    await session.execute("import os, random\nx = [1]\nos.environ['STAGE'] = 'one'\nrandom.seed(1)")
    checkpoint = await session.checkpoint("before")
    first = await value(session, "random.random()")
    for _ in range(3):
        await session.execute("x.append(2)\ny = 3\nos.environ['STAGE'] = 'two'\nos.chdir('/tmp')")
        await session.restore(checkpoint)
        assert (
            await value(session, "(x, 'y' in globals(), os.environ['STAGE'], random.random())")
            == f"([1], False, 'one', {first})"
        )
        assert session.next_count == 3
    assert [entry.abandoned for entry in session.history()] == [False, True, True, True, True, True, True, False]
    assert await value(session, "__import__('subprocess').run(['echo', 'works'], capture_output=True).stdout") == "b'works\\n'"


async def test_a_checkpoint_outlives_the_kernel_and_the_session_that_made_it(any_host: Host, tmp_path: Path) -> None:
    async with any_host.session(working_dir=tmp_path, images_dir=tmp_path, recovery="none") as session:
        await session.execute("x = 1")
        checkpoint = await session.checkpoint()
        result = await session.execute("import os; os.kill(os.getpid(), 9)")
        assert (result.recovery, result.state_lost) == ("restarted", True)
        await session.restore(checkpoint)
        assert await value(session, "x") == "1"
    async with any_host.session(start_from=checkpoint) as other:
        assert await value(other, "x") == "1"
        assert other.workspace == str(tmp_path)
        assert [entry.code for entry in other.history()] == ["x = 1", "x"]
    await checkpoint.drop()
    await checkpoint.drop()
    with pytest.raises(CheckpointError, match="is gone"):
        await any_host.session(start_from=checkpoint).start()


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
    await any_session.adopt(branches[2])
    assert await value(any_session, "x") == "3"
    for branch in branches:
        await branch.close()


async def test_branches_share_no_random_state_unless_they_are_to(session: Session) -> None:
    await session.execute("import random, numpy.random")
    own, seeded = await session.fork(2), await session.fork(2, seeds=[7, 7])
    same = await session.fork(2, same_random_state=True)
    branches = (*own, *seeded, *same)
    for generator in ("random.random()", "numpy.random.random()"):
        drawn = [await value(branch, generator) for branch in branches]
        assert drawn[2] == drawn[3] != drawn[4] == drawn[5]
        assert len({*drawn}) == 4
    await asyncio.gather(*(branch.close() for branch in branches))


async def test_a_crash_costs_the_cell_that_crashed_only(any_host: Host, tmp_path: Path) -> None:
    async with made(any_host, tmp_path) as session:
        await session.execute("x = [1]")
        await rolled(session)
        result = await session.execute("x.append(2)\nimport ctypes; ctypes.string_at(0)")
        assert (result.status, result.recovery, result.state_lost) == ("died", "restored", False)
        assert result.error is not None
        assert "SIGSEGV" in result.error.evalue
        assert "goes on from its state after cell 1" in result.error.evalue
        assert await value(session, "x") == "[1]"
        assert [entry.abandoned for entry in session.history()] == [False, True, False]


async def test_code_that_does_not_stop_costs_only_its_own_cell(host: Host, tmp_path: Path) -> None:
    async with made(host, tmp_path) as session:
        await session.execute("import signal\nx = 1\nsignal.signal(signal.SIGINT, signal.SIG_IGN)")
        await rolled(session)
        result = await session.execute("x = 2\nwhile True: pass", timeout=0.01)
        assert (result.status, result.recovery) == ("timeout", "restored")
        assert await value(session, "x") == "1"


async def test_undo_goes_back_over_cells_and_says_which(host: Host, tmp_path: Path) -> None:
    async with made(host, tmp_path) as session:
        for number in range(1, 5):
            await session.execute(f"x = {number}")
            await rolled(session)
        undone = await session.undo(2)
        assert ([cell.code for cell in undone.cells], undone.execution_count) == (["x = 3", "x = 4"], 2)
        assert await value(session, "x") == "2"
        await rolled(session)
        undone = await session.undo(3)
        assert ([cell.code for cell in undone.cells], undone.execution_count) == (["x = 1", "x = 2", "x"], 0)
        assert await value(session, "'x' in globals()") == "False"
        with pytest.raises(CheckpointError, match="only 1 of 2 cells can be undone"):
            await session.undo(2)


async def test_undo_without_checkpoints_is_an_error_that_says_why(session: Session, host: Host, tmp_path: Path) -> None:
    async with made(host, tmp_path, "none") as session:
        await session.execute("1")
        await session.execute("2")
        with pytest.raises(CheckpointError, match="recovery='none'"):
            await session.undo()
        for wrong in (0, -1, True, "1"):
            with pytest.raises(InvalidInputError):
                await session.undo(wrong)  # type: ignore[arg-type]


async def test_checkpoints_of_other_hosts_and_wrong_ones_are_refused(host: Host, session: Session) -> None:
    async with Host(isolate="none") as other, other.session() as theirs:
        foreign = await theirs.checkpoint()
        with pytest.raises(CheckpointError, match="another host"):
            await session.restore(foreign)
    with pytest.raises(CheckpointError, match="is gone"):
        await session.restore(foreign)
    with pytest.raises(InvalidInputError, match="checkpoint must be what"):
        await session.restore("one")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="name"):
        await session.checkpoint("x" * 1000)
    with pytest.raises(InvalidInputError, match="branches"):
        await session.fork(0)


async def test_restoring_stops_what_runs(session: Session) -> None:
    await session.execute("x = 1")
    checkpoint = await session.checkpoint()
    running = asyncio.create_task(session.execute("x = 2\nimport time; time.sleep(60)"))
    await eventually(lambda: session.reader.running)
    await session.restore(checkpoint)
    assert (await running).status == "interrupted"
    assert await value(session, "x") == "1"
    await checkpoint.drop()


async def test_a_copy_has_no_connection_and_no_output_of_the_original(any_session: Session) -> None:
    """Files have positions of their own, and sockets look closed, so that two kernels never speak on one connection."""
    await any_session.execute(
        """
        import asyncio
        file = open("notes.txt", "w+"); file.write("one"); file.flush()
        """
    )
    checkpoint = await any_session.checkpoint()
    await any_session.execute("file.write('two'); file.flush()")
    (branch,) = await any_session.fork()
    await any_session.restore(checkpoint)
    assert await value(any_session, "file.tell()") == "3"
    assert await value(branch, "file.tell()") == "6"
    await branch.close()


async def test_tasks_of_the_loop_go_on_in_the_copy(session: Session) -> None:
    await session.execute(
        """
        import asyncio
        ticks = []
        async def tick():
            while True:
                ticks.append(1)
                await asyncio.sleep(0.001)
        task = asyncio.create_task(tick())
        await asyncio.sleep(0.01)
        """
    )
    checkpoint = await session.checkpoint()
    await session.restore(checkpoint)
    assert int(await value(session, "n = len(ticks); await asyncio.sleep(0.05); len(ticks) - n")) > 0
    assert await value(session, "await asyncio.to_thread(lambda: 5)") == "5"


async def test_too_many_automatic_checkpoints_are_dropped_and_named_ones_never(host: Host, tmp_path: Path) -> None:
    async with made(host, tmp_path, Rolling(keep=2, after=0.001)) as session:
        await session.execute("1")
        kept = await session.checkpoint("kept")
        for _ in range(4):
            await session.execute("1")
            await rolled(session)
        await eventually(lambda: len(session.checkpoints()) == 3)
        assert session.checkpoints()[0] is kept


async def test_a_state_that_was_gone_back_to_keeps_its_automatic_checkpoint(host: Host, tmp_path: Path) -> None:
    """Another one of the same state would only push out older ones."""
    async with made(host, tmp_path, Rolling(keep=2, after=0.001)) as session:
        for _ in range(3):
            await session.execute("1")
            await rolled(session)
        await session.undo()
        (kept,) = session.checkpoints()
        await (await session.checkpoint()).drop()
        await session._checkpoints._roll(Rolling(keep=2))
        assert session.checkpoints() == [kept]


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
        with pytest.raises(CheckpointError, match="is gone"):
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


async def test_at_the_limit_of_processes_it_is_said_what_makes_room(native_host: Host, tmp_path: Path) -> None:
    policy = Policy(resources=Resources(processes=30))
    async with native_host.session(policy=policy, recovery="none", working_dir=tmp_path, images_dir=tmp_path) as session:
        await session.execute("x = 1")
        kept = [await session.checkpoint()]

        async def fill() -> None:
            while True:
                kept.append(await session.checkpoint())

        with pytest.raises(CheckpointError, match=r"each checkpoint is a process: drop some"):
            await fill()
        with pytest.raises(CheckpointError, match=r"30 may run at once .* drop some"):
            await session.restore(kept[0])
        assert await value(session, "x") == "1"
        for checkpoint in kept:
            await checkpoint.drop()
