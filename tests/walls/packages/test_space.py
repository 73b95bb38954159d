"""How much the packages of a session take."""

from __future__ import annotations

import os
from pathlib import Path

from cellblock.walls.packages.space import excess


def test_bytes_and_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "data").write_bytes(bytes(2**21))
    assert excess(str(tmp_path), 2**22) is None
    assert excess(str(tmp_path), 2**20) == "more than 1 MiB"
    assert excess(str(tmp_path), 2**22, most_files=1) == "more than 1 files"


def test_links_are_not_followed(tmp_path: Path) -> None:
    os.symlink("/usr", tmp_path / "link")
    assert excess(str(tmp_path), 2**20, most_files=1) is None


def test_what_cannot_be_measured_is_too_much(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=here)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    found = excess(str(tmp_path), 2**30)
    assert found is not None
    assert "cannot be measured" in found
