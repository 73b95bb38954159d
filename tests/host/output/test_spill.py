"""Files for output that is too large to keep; a disk that fails costs the file, not the cell."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellblock.host.output import spill as spill_module
from cellblock.host.output.spill import Spill, SpillDirectory, Spills


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on which every file opens, and takes nothing: they are all /dev/full."""

    monkeypatch.setattr("cellblock.host.output.spill.create_file", lambda _directory, _name: os.open("/dev/full", os.O_WRONLY))
    return tmp_path


def beneath(path: Path, cell: int = 10**9) -> Spills:
    """Return the files of a cell in a directory."""
    return Spills(SpillDirectory(path, cell, 10**9))


async def test_it_holds_what_came_before_and_after(tmp_path: Path) -> None:
    spills = beneath(tmp_path / "new" / "directory")
    spill = Spill(spills, "text/html")
    spill.begin([b"one ", bytearray(b"two ")])
    spill.write(b"three")
    spill.begin([b"once only"])
    spill.close()
    spill.close()
    await spills.written()
    assert spill.path is not None
    assert spill.path.read_bytes() == b"one two three"


@pytest.mark.parametrize(
    ("mime", "suffix"), [("text/plain", ".txt"), ("image/png", ".png"), ("application/x", ".bin"), ("../../evil", ".bin")]
)
async def test_its_name_comes_from_its_type_and_from_nothing_that_the_cell_says(
    tmp_path: Path, mime: str, suffix: str
) -> None:
    spill = Spill(beneath(tmp_path), mime)
    spill.begin([])
    spill.close()
    assert spill.path is not None
    assert spill.path.parent == tmp_path
    assert spill.path.suffix == suffix


@pytest.mark.parametrize("size", [10, 10_000_000], ids=["when it is closed", "when it is written"])
async def test_a_full_disk_ends_the_file_and_says_why(full_disk: Path, size: int) -> None:
    spills = beneath(full_disk)
    spill = Spill(spills, "text/plain")
    spill.begin([b"x" * size])
    spill.write(b"more")
    spill.close()
    await spills.written()
    assert spills.problems == [f"[cellblock] the whole output could not be written to {full_disk}: No space left on device"]


@pytest.mark.skipif(os.getuid() == 0, reason="nothing is forbidden to root")
async def test_a_directory_that_may_not_be_written_to_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    spills = beneath(tmp_path)
    spill = Spill(spills, "text/plain")
    spill.begin([b"x"])
    spill.close()
    await spills.written()
    assert spills.problems == [f"[cellblock] the whole output could not be written to {tmp_path}: Permission denied"]


async def test_the_files_of_a_cell_have_a_size_together(tmp_path: Path) -> None:
    spills = beneath(tmp_path, cell=1000)
    for _ in range(5):
        spill = Spill(spills, "text/plain")
        spill.begin([b"x" * 300])
        spill.write(b"y" * 300)
        spill.close()
    await spills.written()
    assert [path.read_bytes() for path in spills.paths] == [b"x" * 300 + b"y" * 300, b"x" * 300 + b"y" * 100]
    (problem,) = spills.problems
    assert "20 files with 1,000 bytes together (Limits.spill)" in problem


async def test_a_cell_has_a_number_of_files(tmp_path: Path) -> None:
    spills = beneath(tmp_path)
    for _ in range(100):
        spill = Spill(spills, "text/plain")
        spill.begin([b"x"])
        spill.close()
    await spills.written()
    assert len([*tmp_path.iterdir()]) == len(spills.paths) == 20


async def test_the_oldest_files_of_a_session_are_removed_and_nothing_else(tmp_path: Path) -> None:
    directory = SpillDirectory(tmp_path, cell=10**9, session=1000)
    (tmp_path / "mine").write_bytes(b"x" * 5000)
    for number in range(5):
        spills = Spills(directory)
        spill = Spill(spills, "text/plain")
        spill.begin([b"%d" % number * 400])
        spill.close()
        spills.close()
        await spills.written()
    kept = sorted(path.read_bytes()[:1] for path in tmp_path.iterdir())
    assert kept == [b"3", b"4", b"x"]
    last = Spills(directory)
    spill = Spill(last, "text/plain")
    spill.begin([b"z" * 5000])
    spill.close()
    last.close()
    await last.written()
    assert sorted(path.read_bytes()[:1] for path in tmp_path.iterdir()) == [b"x", b"z"]


async def test_what_is_removed_is_reached_through_no_link(tmp_path: Path) -> None:
    directory, elsewhere = tmp_path / "spill", tmp_path / "elsewhere"
    keeper = SpillDirectory(directory, cell=10**9, session=10)
    spills = Spills(keeper)
    spill = Spill(spills, "text/plain")
    spill.begin([b"x" * 100])
    spill.close()
    spills.close()
    await spills.written()
    directory.rename(elsewhere)
    directory.symlink_to(elsewhere)
    keeper.keep([("new", 100)])
    assert len([*elsewhere.iterdir()]) == 1


@pytest.fixture
def stalled_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of which every file is a pipe that nobody reads, until the test has ended."""
    reading, writing = os.pipe()
    monkeypatch.setattr("cellblock.host.output.spill.create_file", lambda _directory, _name: os.dup(writing))
    yield tmp_path
    os.set_blocking(reading, False)
    with contextlib.suppress(BlockingIOError):
        while os.read(reading, 1 << 20):
            pass
    os.close(reading)
    os.close(writing)


async def test_a_disk_that_stalls_holds_up_neither_the_loop_nor_the_result(
    stalled_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill_module, "_PATIENCE", 0.05)
    monkeypatch.setattr(spill_module, "_MAX_WAITING", 1_000_000)
    monkeypatch.setattr(spill_module, "_MOST_WAITING", 2_000_000)
    directory = SpillDirectory(stalled_disk, 10**9, 10**9)
    spills = Spills(directory)
    spill = Spill(spills, "text/plain")
    spill.begin([])
    behind = []
    for _ in range(30):
        spill.write(b"x" * 300_000)
        behind.append(spills.behind)
    assert behind == sorted(behind), "at first there is room"
    assert behind[-1]
    assert directory.disk.waiting < 3_000_000
    spills.hurry()
    assert not spills.behind
    spill.close()
    spills.close()
    await spills.written()
    assert [problem.partition(str(stalled_disk))[2] for problem in spills.problems] == [
        ": the disk is too slow",
        ": the disk has not written it for 0.05 s",
    ]
    later = Spills(directory)
    assert later.new_path("text/plain") is None
    assert "the disk accepts no writes" in later.problems[0]


async def test_a_disk_that_has_caught_up_is_used_again(tmp_path: Path) -> None:
    directory = SpillDirectory(tmp_path, 10**9, 10**9)
    directory.stalled = True
    assert Spills(directory).new_path("text/plain") is not None
