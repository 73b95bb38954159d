"""Which directories of generated packages a program names, and what of them is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cellblock import InvalidInputError
from cellblock.service.session.tool_directories import ToolDirectories


def test_what_is_named_is_callable_readable_and_importable(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    read = ToolDirectories.read(tmp_path / "link", {"PYTHONPATH": "/before"}, None)
    assert read.callable == (str((tmp_path / "real").resolve()),)
    assert read.readable == (str(tmp_path / "link"),)
    assert read.environment == {"PYTHONPATH": f"/before{os.pathsep}{tmp_path}"}


def test_the_search_path_is_relative_to_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    read = ToolDirectories.read((), {"PYTHONPATH": "packages:missing::"}, tmp_path)
    assert read.callable == (str((tmp_path / "packages").resolve()),)
    assert read.environment == {}


def test_the_home_directory_on_the_search_path_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    assert ToolDirectories.read((), {"PYTHONPATH": str(tmp_path)}, None).readable == ()
    with pytest.raises(InvalidInputError, match="contains your home directory"):
        ToolDirectories.read(tmp_path, {}, None)


def test_what_is_not_a_directory_is_named() -> None:
    cases: list[tuple[Any, str]] = [("/does/not/exist", "is not a directory"), ([1], "tools must be directories")]
    for tools, said in cases:
        with pytest.raises(InvalidInputError, match=said):
            ToolDirectories.read(tools, {}, None)
