"""A state is saved from its checkpoint while the session goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cellblock import CheckpointError, ExecutionTimeoutError, Host, SnapshotError
from cellblock.host.checkpoints.files import CheckpointFiles
from cellblock.host.saved_file import report
from processes import eventually


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


async def test_variables_and_files_are_those_of_the_state_and_not_of_the_cell_that_runs(
    zygote_host: Host, workspace: Path, tmp_path: Path
) -> None:
    async with zygote_host.session(working_dir=workspace, images_dir=tmp_path) as session:
        await session.execute("x = 1; open('a', 'w').write('1'); import asyncio")
        state = session.saving.last_state
        running = asyncio.create_task(session.execute("x = 2; open('a', 'w').write('2'); await asyncio.sleep(600)", tag="t"))
        await eventually(lambda: (workspace / "a").read_text() == "2")
        assert session.saving.last_state == (state.number, "t", True)
        made = await session.saving.save_aside(state.number, tmp_path / "s.cellblock")
        assert not running.done()
        assert (made.files, made.cells) == (True, 1)
        assert await session.interrupt()
        await running
        assert len(zygote_host.kernels.alive) == 1
    (workspace / "a").unlink()
    async with zygote_host.session(working_dir=workspace, images_dir=tmp_path) as session:
        assert await session.saving.load_missing(tmp_path / "s.cellblock") == []
        assert (await session.execute("x, open('a').read()")).return_value == "(1, '1')"
        await session.undo()


async def test_a_state_without_a_checkpoint_is_refused(zygote_host: Host, workspace: Path, tmp_path: Path) -> None:
    async with zygote_host.session(working_dir=workspace, images_dir=tmp_path, recovery="none") as session:
        assert session.saving.last_state.number == 0
        await session.execute("x = 1")
        with pytest.raises(CheckpointError, match="there is no checkpoint of that state"):
            await session.saving.save_aside(session.saving.last_state.number, tmp_path / "s.cellblock")
    assert not (tmp_path / "s.cellblock").exists()


async def test_files_that_could_not_be_kept_are_reported(
    zygote_host: Host, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none(*_: object) -> None:
        raise SnapshotError("too many")

    monkeypatch.setattr(CheckpointFiles, "take_small", none)
    async with zygote_host.session(working_dir=workspace, images_dir=tmp_path) as session:
        await session.execute("x = 1")
        saved = await session.saving.save_aside(session.saving.last_state.number, tmp_path / "s.cellblock")
        assert not saved.files
        assert [(one.name, one.reason) for one in saved.left_out] == [("the files", "too many")]
        assert not report(tmp_path / "s.cellblock").files


async def test_a_value_that_cannot_be_pickled_in_time_ends_the_save_only(
    zygote_host: Host, workspace: Path, tmp_path: Path
) -> None:
    code = "import time\nclass Slow:\n    def __reduce__(self):\n        time.sleep(600)\nx = Slow(); y = 1"
    async with zygote_host.session(working_dir=workspace, images_dir=tmp_path) as session:
        await session.execute(code)
        with pytest.raises(ExecutionTimeoutError):
            await session.saving.save_aside(session.saving.last_state.number, tmp_path / "s.cellblock", timeout=0.5)
        assert (await session.execute("y")).return_value == "1"
        assert len(zygote_host.kernels.alive) == 1
    assert not (tmp_path / "s.cellblock").exists()


@pytest.mark.parametrize("turns", [1, 5, 20, 60])
async def test_a_save_that_is_cancelled_leaves_nothing(zygote_host: Host, workspace: Path, tmp_path: Path, turns: int) -> None:
    async with zygote_host.session(working_dir=workspace, images_dir=tmp_path) as session:
        await session.execute("x = bytes(5_000_000); open('a', 'w').write('1')")
        await session.checkpoint()
        saving = asyncio.create_task(session.saving.save_aside(session.saving.last_state.number, tmp_path / "s.cellblock"))
        for _ in range(turns):
            await asyncio.sleep(0)
        saving.cancel()
        await asyncio.wait([saving])
        assert len(zygote_host.kernels.alive) == 1
        snapshots = len(zygote_host.store()._snapshots)
        await eventually(lambda: len(zygote_host.store()._snapshots) <= snapshots)
        assert (await session.execute("len(x)")).return_value == "5000000"
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".cellblock" or path.name[0] == "."] in (
        [],
        ["s.cellblock"],
    )
