"""Exact checkpoints: what can be undone, and what is said of a cell that cannot be."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from cellblock import CheckpointError, Exact, Host, InvalidInputError, Rolling, Session
from cellblock.host.checkpoints import workspace_snapshots as checkpoint_files
from cellblock.host.snapshots import SnapshotLimits
from checkpoint_sessions import wait_for_clock
from clocks import WallClock
from processes import eventually


def made(host: Host, workspace: Path, keep: int = 5) -> Session:
    return host.session(working_dir=workspace, images_dir=workspace.parent, recovery=Exact(keep=keep))


@pytest.mark.slow
async def test_undo_goes_to_the_state_in_which_the_cell_began_and_to_no_later_one_with_the_same_cells(
    zygote_host: Host, tmp_path: Path
) -> None:
    async with made(zygote_host, tmp_path) as session:
        await session.execute("x = 1")
        first = await session.checkpoint()
        await session.execute("x = 2")
        second = await session.checkpoint()
        await session.restore(first)
        await session.put("x", 3)
        later = await session.checkpoint()
        await session.restore(second)
        assert len((await session.undo()).cells) == 1
        assert (await session.execute("x")).return_value == "1"
        for checkpoint in (first, second, later):
            await checkpoint.drop()


async def test_an_undo_that_is_refused_costs_no_checkpoint_that_is_due(zygote_host: Host, tmp_path: Path) -> None:
    async with zygote_host.session(working_dir=tmp_path, recovery=Rolling(after=0.05)) as session:
        await session.execute("x = 1")
        await session.execute("y = 2")
        with pytest.raises(CheckpointError, match="no checkpoint from before that cell"):
            await session.undo()
        await eventually(lambda: any(one.automatic for one in session._checkpoints.all()))
        died = await session.execute("import os; os._exit(1)")
        assert (died.status, died.recovery) == ("died", "restored")
        assert (await session.execute("x, y")).return_value == "(1, 2)"


async def test_a_large_file_that_has_changed_is_said_at_once_and_not_undone(
    zygote_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_files, "_SMALL", SnapshotLimits(max_file_bytes=10))
    (tmp_path / "large").write_text("more than ten bytes")
    await wait_for_clock()
    async with made(zygote_host, tmp_path) as session:
        assert (await session.execute("x = 1; open('new', 'w').write('more than ten bytes')")).not_undoable == ""
        changed = await session.execute("x = 2; open('large', 'a').write('!')")
        assert "'large' has changed" in changed.not_undoable
        assert changed.not_undoable in (changed.text or "")
        with pytest.raises(CheckpointError, match="'large' has changed"):
            await session.undo()
        assert (await session.execute("x")).return_value == "2"
        undone = await session.undo(2, partial=True)
        assert "'large' has changed" in undone.files_left
        assert (await session.execute("x")).return_value == "1"
        assert (tmp_path / "large").read_text().endswith("!")


async def test_a_large_file_that_is_new_goes_and_one_that_nobody_changes_keeps_nothing_from_being_undone(
    zygote_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_files, "_SMALL", SnapshotLimits(max_file_bytes=10))
    (tmp_path / "large").write_text("more than ten bytes")
    os.utime(tmp_path / "large", (1, 1))
    async with made(zygote_host, tmp_path) as session:
        await session.execute("x = 1")
        await session.execute("open('new', 'w').write('more than ten bytes')")
        assert [one.path for one in (await session.undo()).files] == ["new"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["large"]


async def test_files_of_a_large_directory_that_is_not_the_sessions_are_only_looked_at(
    zygote_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_files, "_MAX_SHARED", 1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").touch()
    (tmp_path / "two").touch()
    async with zygote_host.session(images_dir=tmp_path) as session:
        await session.execute("x = 1")
        assert (await session.execute("x = 2")).text is None
        await session.undo()
        await session.execute("open('one', 'w').write('1')")
        with pytest.raises(CheckpointError, match=r"'one' has changed, and there are more than 1 files"):
            await session.undo()
        assert (await session.undo(partial=True)).files_left
        assert (await session.execute("x")).return_value == "1"


async def test_the_first_cell_of_a_loaded_session_can_be_undone(zygote_host: Host, tmp_path: Path) -> None:
    (workspace := tmp_path / "workspace").mkdir()
    async with made(zygote_host, workspace) as session:
        await session.execute("x = 1")
        await session.save(tmp_path / "saved")
        await session.load(tmp_path / "saved")
        result = await session.execute("x = 2")
        assert result.not_undoable == ""
        await session.undo()
        assert (await session.execute("x")).return_value == "1"


async def test_an_undo_brings_files_back_although_the_clock_was_set_back_while_the_cell_ran(
    zygote_host: Host, tmp_path: Path
) -> None:
    """The files of the cell are older than the cell then."""
    (workspace := tmp_path / "workspace").mkdir()
    os.mkfifo(go := tmp_path / "go")
    async with made(zygote_host, workspace) as session:
        await session.execute("open('f', 'w').write('1')")
        with WallClock() as clock:
            clock.ahead = 7200.0
            cell = asyncio.create_task(session.execute(f"open({str(go)!r}).read(); open('f', 'w').write('2')"))
            with await asyncio.to_thread(open, go, "w"):
                clock.ahead = 0.0
            await cell
            assert len((await session.undo()).cells) == 1
        assert (workspace / "f").read_text() == "1"


@pytest.mark.slow
async def test_as_many_cells_can_be_undone_after_a_branch_is_adopted(zygote_host: Host, tmp_path: Path) -> None:
    async with made(zygote_host, tmp_path, keep=2) as session:
        await session.execute("x = 1")
        await session.execute("x = 2")
        (branch,) = await session.fork()
        await branch.execute("x = 3")
        await session.adopt(branch)
        assert [cell.code for cell in (await session.undo(2)).cells] == ["x = 2", "x = 3"]
        assert (await session.execute("x")).return_value == "1"


@pytest.mark.parametrize("wrong", [Exact, "exactly", None, 5])
async def test_another_way_of_recovery_is_refused(zygote_host: Host, wrong: object) -> None:
    with pytest.raises(InvalidInputError, match="recovery must be 'exact', 'rolling', 'none', an Exact or a Rolling"):
        zygote_host.session(recovery=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="keep must be a number from 1 to 1000"):
        Exact(keep=0)
