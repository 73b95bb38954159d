"""Files for output that is too large to keep; a disk that fails costs the file, not the cell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellblock.host.collect import Collector, Limits
from cellblock.host.spill import Spill
from cellblock.wire.messages import Display


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on which every file opens, and takes nothing: they are all /dev/full."""

    monkeypatch.setattr("cellblock.host.spill.create_file", lambda _directory, _name: os.open("/dev/full", os.O_WRONLY))
    return tmp_path


def test_nothing_is_written_before_it_begins(tmp_path: Path) -> None:
    spill = Spill(tmp_path, "text/plain")
    spill.write(b"before")
    spill.close()
    assert spill.path is None
    assert [*tmp_path.iterdir()] == []


def test_it_holds_what_came_before_and_after(tmp_path: Path) -> None:
    spill = Spill(tmp_path / "new" / "directory", "text/html")
    spill.begin([b"one ", bytearray(b"two ")])
    spill.write(b"three")
    spill.begin([b"once only"])
    spill.close()
    spill.close()
    assert spill.path is not None
    assert spill.path.read_bytes() == b"one two three"
    assert spill.problem is None


@pytest.mark.parametrize(
    ("mime", "suffix"), [("text/plain", ".txt"), ("image/png", ".png"), ("application/x", ".bin"), ("../../evil", ".bin")]
)
def test_its_name_comes_from_its_type_and_from_nothing_that_the_cell_says(tmp_path: Path, mime: str, suffix: str) -> None:
    spill = Spill(tmp_path, mime)
    spill.begin([])
    spill.close()
    assert spill.path is not None
    assert spill.path.parent == tmp_path
    assert spill.path.suffix == suffix


def test_without_a_directory_there_is_no_file() -> None:
    spill = Spill(None, "text/plain")
    spill.begin([b"x"])
    spill.write(b"y")
    spill.close()
    assert spill.path is None
    assert spill.problem is None


@pytest.mark.parametrize("size", [10, 10_000_000], ids=["when it is closed", "when it is written"])
def test_a_full_disk_ends_the_file_and_says_why(full_disk: Path, size: int) -> None:
    spill = Spill(full_disk, "text/plain")
    spill.begin([b"x" * size])
    spill.write(b"more")
    spill.close()
    assert spill.problem == f"[cellblock] the whole output could not be written to {full_disk}: No space left on device"


def test_a_cell_on_a_full_disk_ends_as_any_other(full_disk: Path) -> None:
    collector = Collector(Limits(text=1000, value=1000), full_disk)
    collector.add_text("stdout", b"x" * 1_000_000)
    collector.add_part("text/html", b"y" * 200_000)
    collector.add_display(Display("display_data", {}, parts=("text/html",)))
    text = "".join(item.text or "" for item in collector.items())
    assert text.count("No space left on device") == 1
    assert collector.truncated


@pytest.mark.skipif(os.getuid() == 0, reason="nothing is forbidden to root")
def test_a_directory_that_may_not_be_written_to_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    spill = Spill(tmp_path, "text/plain")
    spill.begin([b"x"])
    assert spill.problem == f"[cellblock] the whole output could not be written to {tmp_path}: Permission denied"


def test_a_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spill = Spill(tmp_path / "file", "text/plain")
    spill.begin([b"x"])
    assert spill.path is None
    assert str(tmp_path / "file") in str(spill.problem)
