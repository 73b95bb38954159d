"""Checkpoints of real kernels, in each kind of sandbox: what they hold, and what becomes of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cellblock import CheckpointError, Host, InvalidInputError, Policy, Resources, Rolling, Session
from checkpoint_sessions import made, rolled, value
from clocks import hurry_stopping
from processes import eventually


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
            await value(session, "(x, 'y' in globals(), os.environ['STAGE'], len(_dh), random.random())")
            == f"([1], False, 'one', 1, {first})"
        )
        assert session.next_count == 3
    assert [entry.abandoned for entry in session.history()] == [False, True, True, True, True, True, True, False]
    assert await value(session, "__import__('subprocess').run(['echo', 'works'], capture_output=True).stdout") == "b'works\\n'"


async def test_a_crash_costs_the_cell_that_crashed_only(any_host: Host, tmp_path: Path) -> None:
    async with made(any_host, tmp_path) as session:
        await session.execute("x = [1]")
        await rolled(session)
        result = await session.execute("x.append(2)\nimport ctypes; ctypes.string_at(0)")
        assert (result.status, result.recovery, result.state_lost) == ("died", "restored", False)
        assert result.error is not None
        assert "SIGSEGV" in result.error.evalue
        assert "continues from its state after cell 1" in result.error.evalue
        assert await value(session, "x") == "[1]"
        assert [entry.abandoned for entry in session.history()] == [False, True, False]


async def test_code_that_does_not_stop_costs_only_its_own_cell(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry_stopping(monkeypatch)
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
        with pytest.raises(CheckpointError, match="there is only 1 cell to undo, not 2"):
            await session.undo(2)


async def test_checkpoints_are_found_by_name_and_id(host: Host, tmp_path: Path) -> None:
    async with made(host, tmp_path, "none") as session:
        for number in range(3):
            await session.execute(f"x = {number}")
            checkpoint = await session.checkpoint("same" if number < 2 else "")
        await session.restore("same")  # the last one of this name
        assert await value(session, "x") == "1"
        assert [one.before.preview for one in (await session.diff(checkpoint.id)).variables.changed] == ["2"]
        await session.restore(checkpoint.id)
        assert await value(session, "x") == "2"
        with pytest.raises(CheckpointError, match=rf"there is no checkpoint 'sam'; .* has: same, same, {checkpoint.id}$"):
            await session.restore("sam")
        with pytest.raises(CheckpointError, match="there is no checkpoint ''"):
            await session.restore("")


@pytest.mark.slow
async def test_checkpoints_of_other_hosts_and_wrong_ones_are_refused(host: Host, session: Session) -> None:
    async with Host(isolate="none") as other, other.session() as theirs:
        foreign = await theirs.checkpoint()
        with pytest.raises(CheckpointError, match="another host"):
            await session.restore(foreign)
    with pytest.raises(CheckpointError, match="no longer exists"):
        await session.restore(foreign)
    with pytest.raises(InvalidInputError, match="checkpoint must be a checkpoint, its name or its id, not 1"):
        await session.restore(1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="name"):
        await session.checkpoint("x" * 1000)
    with pytest.raises(InvalidInputError, match="branches"):
        await session.fork(0)


async def test_too_many_automatic_checkpoints_are_dropped_and_named_ones_never(host: Host, tmp_path: Path) -> None:
    async with made(host, tmp_path, Rolling(keep=2, after=0.001)) as session:
        await session.execute("1")
        kept = await session.checkpoint("kept")
        for _ in range(4):
            await session.execute("1")
            await rolled(session)
        await eventually(lambda: len(session.checkpoints()) == 3)
        assert session.checkpoints()[0] is kept


async def test_after_a_checkpoint_that_was_refused_an_automatic_one_is_tried(host: Host, tmp_path: Path) -> None:
    """Why it was refused is forgotten with the kernel."""
    async with made(host, tmp_path, Rolling(after=0.05)) as session:
        await session.execute("import threading; go = threading.Event(); threading.Thread(target=go.wait).start()")
        with pytest.raises(CheckpointError, match="is running"):
            await session.checkpoint()
        await eventually(lambda: "is running" in session.checkpoint_refused)
        await session.reset()
        assert session.checkpoint_refused == ""


async def test_an_undo_names_what_was_allowed_outside_in_a_branch_that_was_adopted(zygote_host: Host, tmp_path: Path) -> None:
    async with zygote_host.session(working_dir=tmp_path) as session:
        await session.execute("x = 1")
        before = await session.checkpoint()
        (branch,) = await session.fork()
        branch.succession.note_outside("a call")
        await branch.execute("x = 2")
        await session.adopt(branch)
        undone = await session.undo()
        assert ([cell.code for cell in undone.cells], undone.outside) == (["x = 2"], ["a call"])
        await before.drop()
        await session.checkpoint()
        await session.execute("x = 3")
        assert (await session.undo()).outside == []


async def test_a_state_that_ends_by_itself_is_not_gone_back_to_again(host: Host, tmp_path: Path) -> None:
    code = f"""
        import asyncio, os
        async def end():
            while not os.path.exists({str(tmp_path / "end")!r}):
                await asyncio.sleep(0.001)
            os._exit(3)
        x, task = 2, asyncio.create_task(end())
    """
    async with made(host, tmp_path) as session:
        await session.execute("x = 1")
        await rolled(session)
        await session.execute(code)
        await rolled(session)
        (tmp_path / "end").touch()
        async with asyncio.timeout(20):
            while session.next_count != 2:
                await session.wait_for_kernel()
                await asyncio.sleep(0)
        result = await session.execute("x")
        assert (result.return_value, result.recovery, result.state_lost) == ("1", "restored_earlier", True)


async def test_a_state_that_was_gone_back_to_keeps_its_automatic_checkpoint(host: Host, tmp_path: Path) -> None:
    """Another one of the same state would only push out older ones."""
    async with made(host, tmp_path, Rolling(keep=2, after=0.001)) as session:
        for _ in range(3):
            await session.execute("1")
            await rolled(session)
        await session.undo()
        (kept,) = session.checkpoints()
        await (await session.checkpoint()).drop()
        await session._checkpoints.automatic._roll()
        assert session.checkpoints() == [kept]


@pytest.mark.slow
async def test_at_the_limit_of_processes_it_is_said_what_makes_room(native_host: Host, tmp_path: Path) -> None:
    policy = Policy(resources=Resources(processes=30))
    async with native_host.session(policy=policy, recovery="none", working_dir=tmp_path, images_dir=tmp_path) as session:
        await session.execute("x = 1")
        kept = [await session.checkpoint()]

        async def fill() -> None:
            while True:
                kept.append(await session.checkpoint())

        with pytest.raises(CheckpointError, match=r"each checkpoint is a process: drop checkpoints"):
            await fill()
        with pytest.raises(CheckpointError, match=r"30 may run at once .* drop some"):
            await session.restore(kept[0])
        assert await value(session, "x") == "1"
        for checkpoint in kept:
            await checkpoint.drop()
