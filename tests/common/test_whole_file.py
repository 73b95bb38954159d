"""A file is complete, or it is not there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cellblock.common.whole_file import WholeFile


@pytest.mark.parametrize("before", [None, b"old"])
def test_a_file_that_is_not_completed_is_not_there_and_replaces_nothing(tmp_path: Path, before: bytes | None) -> None:
    target = tmp_path / "a"
    if before is not None:
        target.write_bytes(before)
    with pytest.raises(KeyboardInterrupt), WholeFile(target) as file:  # noqa: PT012  # the block is what is tested
        file.write(b"new")
        file.flush()
        assert not target.exists() or target.read_bytes() == before
        raise KeyboardInterrupt
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == ({} if before is None else {"a": before})


def test_a_file_that_is_complete_replaces_what_was_there_and_is_private(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"old")
    target.chmod(0o644)
    with WholeFile(target) as file:
        file.write(b"new")
    assert (os.listdir(tmp_path), target.read_bytes()) == (["a"], b"new")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_a_link_with_its_name_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"old")
    (tmp_path / "a").symlink_to("elsewhere")
    with WholeFile(tmp_path / "a") as file:
        file.write(b"new")
    assert ((tmp_path / "elsewhere").read_bytes(), (tmp_path / "a").read_bytes()) == (b"old", b"new")


def test_it_is_written_to_the_directory_that_was_there_when_it_began(tmp_path: Path) -> None:
    """Also if that gets another name, and something else its own."""
    directory, other = tmp_path / "directory", tmp_path / "other"
    directory.mkdir()
    other.mkdir()
    with WholeFile(directory / "a") as file:
        file.write(b"new")
        directory.rename(tmp_path / "moved")
        directory.symlink_to(other)
    assert os.listdir(other) == []
    assert (tmp_path / "moved" / "a").read_bytes() == b"new"


def test_a_file_whose_rename_fails_is_removed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError), WholeFile(tmp_path / "a") as file:
        file.write(b"new")
    assert os.listdir(tmp_path) == ["a"]


def test_closing_twice_and_without_opening_is_fine(tmp_path: Path) -> None:
    file = WholeFile(tmp_path / "a")
    file.close()
    file.open().write(b"new")
    file.finish()
    file.close()
    file.close()
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="Linux has files without names")
def test_a_process_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    with WholeFile(tmp_path / "a") as file:
        file.write(b"x" * 100_000)
        file.flush()
        assert os.listdir(tmp_path) == []
    assert os.listdir(tmp_path) == ["a"]


def test_it_works_on_a_file_system_that_has_no_files_without_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    with WholeFile(tmp_path / "a") as file:
        file.write(b"x")
        (name,) = os.listdir(tmp_path)
        assert name.startswith(".cellblock-")
    assert (tmp_path / "a").read_bytes() == b"x"
