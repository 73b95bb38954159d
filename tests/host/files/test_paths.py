"""Which paths may be named: what leads into the workspace, and what on the caller's disk is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cellblock import FilesError, InvalidInputError
from cellblock.host.files.paths import Workspace


@pytest.fixture
def place(tmp_path: Path) -> Workspace:
    """A workspace that a link leads to."""
    (tmp_path / "real").mkdir()
    (tmp_path / "work").symlink_to("real")
    return Workspace(tmp_path / "work", 5, None)


@pytest.mark.parametrize("path", ["a/b", "./a//b/", "{work}/a/b", "{real}/a/b", Path("a/b")])
def test_every_way_to_write_a_path_gives_its_parts(place: Workspace, tmp_path: Path, path: Any) -> None:
    if isinstance(path, str):
        path = path.format(work=tmp_path / "work", real=tmp_path / "real")
    assert place.parts(path) == ("a", "b")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (b"a", "string or a Path"),
        ("", "empty"),
        ("a\0b", "NUL"),
        ("\ud800", "surrogate"),
        ("../a", r"'\.\.'"),
        ("a/../b", r"'\.\.'"),
        ("/etc/passwd", "not in the workspace"),
        ("{work}er/a", "not in the workspace"),
        ("{work}/../a", r"'\.\.'"),
        ("a/b/c/d/e/f", "over the limit of 5"),
    ],
)
def test_a_path_that_may_lead_elsewhere_is_refused(place: Workspace, tmp_path: Path, path: Any, message: str) -> None:
    if isinstance(path, str):
        path = path.format(work=tmp_path / "work")
    with pytest.raises(InvalidInputError, match=message):
        place.parts(path)


def test_the_workspace_is_not_in_itself(place: Workspace) -> None:
    assert place.parts(".") == ()
    with pytest.raises(InvalidInputError, match="name the file in it"):
        place.inner(".", "file")


def test_a_local_path_in_the_workspace_is_one_of_the_workspace_whatever_leads_there(place: Workspace, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("real/file")
    for path in ("work/file", "real/file", "work/../real/file"):
        assert place.local(tmp_path / path, follow=False) == (None, ("file",))
    assert place.local(tmp_path / "out", follow=True) == (None, ("file",))
    assert place.local(tmp_path / "out", follow=False) == (str(tmp_path), ("out",))
    assert place.local(tmp_path / "elsewhere" / "x", follow=True) == (str(tmp_path / "elsewhere"), ("x",))


@pytest.mark.parametrize("path", ["", "a\0b", b"a", 7])
def test_what_cannot_be_a_local_path_is_refused(place: Workspace, path: Any) -> None:
    with pytest.raises(InvalidInputError):
        place.local(path, follow=False)


def test_another_directory_in_the_place_of_the_workspace_is_not_opened(place: Workspace, tmp_path: Path) -> None:
    with place.open():
        pass
    (tmp_path / "real").rename(tmp_path / "moved")
    (tmp_path / "real").mkdir()
    with pytest.raises(FilesError, match="not the same directory as at first"):
        place.open()
