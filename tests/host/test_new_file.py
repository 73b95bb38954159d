"""A file that is complete or is not there, whatever fails while it is written."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest

from cellblock.common.whole_file import claimed
from cellblock.errors import InvalidInputError, StoreError
from cellblock.host.new_file import NewFile


def test_it_is_there_when_it_is_complete_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new"
    path.write_text("old")
    file = NewFile(path)
    file.open()
    file.write(b"12")
    file.write(b"34")
    assert path.read_text() == "old"
    file.finish()
    file.close()
    assert (path.read_text(), file.size, stat.S_IMODE(path.stat().st_mode)) == ("1234", 4, 0o600)
    assert os.listdir(tmp_path) == ["new"]


def test_one_that_is_not_finished_leaves_nothing_however_often_it_is_closed(tmp_path: Path) -> None:
    file = NewFile(tmp_path / "new")
    file.open()
    file.write(b"1")
    for _ in range(2):
        file.close()
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_beside_it_is_removed_and_what_another_one_writes_stays(tmp_path: Path) -> None:
    left, written, named = (tmp_path / f".cellblock-{digit * 16}" for digit in "abz")
    for path in (left, written, named):
        path.touch()
    with written.open() as another:
        claimed(another.fileno())
        file = NewFile(tmp_path / "new")
        file.open()
        file.finish()
        file.close()
        assert {*os.listdir(tmp_path)} == {"new", written.name, named.name}


@pytest.mark.parametrize("path", [".", "folder", "missing/file"])
def test_where_no_file_can_be_is_said_before_anything_is_made(tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidInputError):
        NewFile(tmp_path / path).open()
    assert os.listdir(tmp_path) == ["folder"]


def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("outside")
    (tmp_path / "link").symlink_to(outside)
    file = NewFile(tmp_path / "link")
    file.open()
    file.write(b"new")
    file.finish()
    file.close()
    assert (outside.read_text(), (tmp_path / "link").is_symlink()) == ("outside", False)


def test_a_disk_without_room_is_an_error_that_says_that_nothing_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "new"
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = NewFile(path)
    file.open()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(StoreError, match=r"new cannot be written: .*; nothing was changed"):
            file.write(b"x" * 1_000_000)  # more than is kept before it is written
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        file.close()
    assert (os.listdir(tmp_path), path.read_text()) == (["new"], "old")
