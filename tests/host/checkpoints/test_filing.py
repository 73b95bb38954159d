"""Files that are kept automatically: those from before the first cell."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from cellblock import CheckpointError, Host, Rolling, Session
from cellblock.host.checkpoints import filing
from cellblock.host.checkpoints import workspace_snapshots as checkpoint_files
from cellblock.host.snapshots import Snapshot
from processes import eventually


@pytest.fixture(params=[pytest.param("none", marks=pytest.mark.slow), "native"])
def any_host(request: pytest.FixtureRequest, zygote_host: Host, native_host: Host) -> Host:
    """A warm host with sandboxes, and one without."""
    return {"none": zygote_host, "native": native_host}[request.param]


def made(host: Host, workspace: Path) -> Session:
    return host.session(working_dir=workspace, images_dir=workspace.parent, recovery=Rolling(after=0.001))


async def test_files_from_before_the_first_cell_come_back(any_host: Host, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("0")
    async with made(any_host, tmp_path) as session:
        for _ in range(2):
            await eventually(lambda: session.cells.past.pairs.latest)
            await session.execute("open('a', 'w').write('1'); open('b', 'w').write('1')")
            undone = await session.undo()
            assert (undone.execution_count, [one.path for one in undone.files], undone.files_left) == (0, ["a", "b"], "")
            assert (tmp_path / "a").read_text() == "0"
            assert not (tmp_path / "b").exists()
    await eventually(lambda: any_host.store().bytes == 0)


async def test_a_first_cell_that_comes_at_once_does_not_wait(zygote_host: Host, tmp_path: Path) -> None:
    async with made(zygote_host, tmp_path) as session:
        await session.execute("open('a', 'w').write('1')")
        with pytest.raises(CheckpointError, match="the next cell began before they could be saved"):
            await session.undo()
        assert (await session.undo(partial=True)).files_left.endswith("the next cell began before they could be saved")
        assert (tmp_path / "a").exists()


@pytest.mark.slow
async def test_a_session_that_is_saved_meanwhile_is_saved_with_its_files(
    zygote_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are kept later than the memory: a save between the two does not go without them."""
    monkeypatch.setattr(filing, "_AFTER", 1000.0)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with made(zygote_host, workspace) as session:
        await session.execute("open('a', 'w').write('1')")
        await eventually(lambda: session._checkpoints.automatic.present())
        report = await session.saving.save_aside(session.saving.last_state.number, tmp_path / "saved")
        assert (report.files, report.left_out) == (True, [])


MAPPED = """
import mmap
f = open('a', 'r+b')
m = mmap.mmap(f.fileno(), 0)
m[0:1] = b'1'
"""


async def test_what_cells_write_through_memory_is_undone(any_host: Host, tmp_path: Path) -> None:
    """The system changes the times of a file with the first write only."""
    (tmp_path / "a").write_text("0")
    (tmp_path / "many").mkdir()
    async with any_host.session(working_dir=tmp_path, images_dir=tmp_path.parent) as session:
        await session.execute("pass")
        await session.execute(MAPPED)
        for number in range(2, 6):
            assert not (await session.execute(f"m[0:1] = b'{number}'")).not_undoable
        assert (tmp_path / "a").read_text() == "5"
        assert [one.path for one in (await session.undo()).files] == ["a"]
        assert (tmp_path / "a").read_text() == "4"


@pytest.mark.slow
async def test_files_that_take_long_are_kept_while_nobody_waits(
    zygote_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filing, "_PATIENCE", 0.3)
    take = checkpoint_files.CheckpointFiles._take_small

    def slow(self: checkpoint_files.CheckpointFiles, *arguments: Any) -> Snapshot | None:
        time.sleep(1)  # in the thread that reads the files
        return take(self, *arguments)

    monkeypatch.setattr(checkpoint_files.CheckpointFiles, "_take_small", slow)
    (tmp_path / "a").write_text("0")
    async with zygote_host.session(working_dir=tmp_path, images_dir=tmp_path.parent) as session:
        await eventually(lambda: session.cells.past.pairs.latest)
        await session.execute("open('a', 'w').write('1')")
        await eventually(lambda: (present := session._checkpoints.automatic.present()) and present.snapshot)
        assert [one.path for one in (await session.undo()).files] == ["a"]
        assert (tmp_path / "a").read_text() == "0"
