"""What is there after a power failure: on a file system that is shut down without a flush, and mounted anew."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cellblock
from daemons import about, own_daemon
from full_disk import Disk
from processes import alive, eventually

pytestmark = pytest.mark.slow
OPTIONS: dict[str, Any] = {"idle_timeout": 0, "approve": "auto"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "disk", tmp_path / "image")
    try:
        yield disk
    finally:
        disk.remove()


async def power_failure(disk: Disk) -> None:
    """Cut the power, and switch the machine on again."""
    found = about()
    disk.cut()
    ended = [found["pid"], found["custodian"]]
    for pid in ended:
        os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not any(map(alive, ended)), 30)
    here = Path.cwd()
    os.chdir("/")
    disk.again()
    os.chdir(here)


@pytest.mark.parametrize("journal", ["kept", "gone"])
async def test_a_durable_session_goes_on_and_says_what_is_lost(disk: Disk, journal: str) -> None:
    with own_daemon(disk.path) as home:
        cellblock.get_or_create("one", durable=1000.0, **OPTIONS)
        cellblock.execute("one", "x = 0")
        await eventually(lambda: [*home.glob("saves/*/[0-9]*.cellblock")], 30)
        await eventually(lambda: all(path.read_bytes() == b"" for path in home.glob("saves/*/cells.jsonl")), 30)
        for number in range(3):
            cellblock.execute("one", f"x = {number + 1}")
        await power_failure(disk)
        if journal == "gone":
            for path in home.glob("named.db*"):
                path.unlink()
        result = cellblock.execute("one", "x")
        assert (result.return_value, result.recovery) == ("0", "restored_earlier")
        assert "What 3 later cells changed in memory is lost: `x = 1`; `x = 2`; `x = 3`" in result.stderr


async def test_files_that_undo_has_restored_are_whole(disk: Disk) -> None:
    with own_daemon(disk.path):
        cellblock.get_or_create("one", **OPTIONS)
        cellblock.execute("one", "for n in range(50): open(f'{n}', 'w').write(f'content {n}')")
        cellblock.execute("one", "import os, shutil; os.mkdir('deep'); [os.remove(f'{n}') for n in range(50)]")
        cellblock.undo("one")
        await power_failure(disk)
        assert {path.name: path.read_text() for path in Path.cwd().iterdir() if path.name[0] != "."} == {
            str(n): f"content {n}" for n in range(50)
        }


async def test_a_file_that_was_written_is_whole(disk: Disk) -> None:
    with own_daemon(disk.path):
        cellblock.get_or_create("one", **OPTIONS)
        cellblock.write_file("one", "new", "content")
        await power_failure(disk)
        path = Path("new")
        assert not path.exists() or path.read_text() == "content"


async def test_a_disk_that_stands_still_costs_a_cell_and_no_variables(disk: Disk, tmp_path: Path) -> None:
    workspace = disk.path / "of the session"
    workspace.mkdir()
    with own_daemon(tmp_path):
        cellblock.get_or_create("one", working_dir=str(workspace), **OPTIONS)
        cellblock.execute("one", "x = 41")
        with disk.standing_still():
            result = cellblock.execute("one", "x = 1; open('f', 'w').write('x')", timeout=1)
            assert (result.status, result.recovery) == ("timeout", "restored")
            assert cellblock.execute("one", "x").return_value == "41"
        assert cellblock.execute("one", "open('g', 'w').write('x'); x").return_value == "41"
