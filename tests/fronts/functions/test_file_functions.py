"""Files of named sessions: in the workspace, and elsewhere as the session's own code sees them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cellblock
from cellblock import FilesError, InvalidInputError, NotFoundError, SessionRecord
from suite import first_quick

FIVE: Any = 5


@pytest.fixture
def session(tmp_path: Path) -> Iterator[SessionRecord]:
    yield cellblock.get_or_create("s", working_dir=str(tmp_path))
    cellblock.wipe()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["", "/tmp/place/"])
def test_files_are_written_read_listed_renamed_and_removed(session: SessionRecord, place: str) -> None:
    written = cellblock.write_file(session, f"{place}deep/a.txt", "text")
    assert (written.path, written.size, written.kind) == (f"{place}deep/a.txt", 4, "file")
    assert cellblock.read_file(session, f"{place}deep/a.txt") == b"text"
    cellblock.make_folder(session, f"{place}deep/b/c")
    listed = [one.path.removeprefix(place) for one in cellblock.list_files(session, f"{place}deep", recursive=True)]
    assert listed == ["deep/a.txt", "deep/b", "deep/b/c"]
    cellblock.rename_file(session, f"{place}deep/a.txt", f"{place}deep/b/d")
    assert cellblock.file_info(session, f"{place}deep/b/d").size == 4
    with pytest.raises(FilesError, match="not empty: recursive=True"):
        cellblock.remove_file(session, f"{place}deep")
    cellblock.remove_file(session, f"{place}deep", recursive=True)
    with pytest.raises(FilesError, match="it does not exist"):
        cellblock.file_info(session, f"{place}deep")


@pytest.mark.parametrize("path", first_quick(["large", "/tmp/large"]))
@pytest.mark.parametrize("size", [0, pytest.param(4 << 20, marks=pytest.mark.slow), (9 << 20) + 1])
def test_content_of_any_size(session: SessionRecord, path: str, size: int) -> None:
    content = os.urandom(size)
    assert cellblock.write_file(session, path, content).size == size
    assert cellblock.read_file(session, path) == content


def test_an_absolute_path_is_what_the_code_sees(session: SessionRecord, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("here")
    assert cellblock.read_file(session, f"{tmp_path}/here") == b"here"
    cellblock.execute(session, code="open('/tmp/mine', 'w').write('mine')")
    assert cellblock.read_file(session, "/tmp/mine") == b"mine"
    assert not Path("/tmp/mine").exists()
    with pytest.raises(FilesError, match=r"cannot write '/etc/mine'"):
        cellblock.write_file(session, "/etc/mine", b"")
    secret = tmp_path.parent / "secret"
    secret.write_text("secret")
    with pytest.raises(FilesError, match=r"it does not exist|permission denied"):
        cellblock.read_file(session, str(secret))


def test_bad_arguments(session: SessionRecord) -> None:
    with pytest.raises(InvalidInputError, match="data must be bytes or text, not int"):
        cellblock.write_file(session, "a", FIVE)
    with pytest.raises(NotFoundError, match="there is no session 'nobody'"):
        cellblock.list_files("nobody")
    with pytest.raises(InvalidInputError, match=r"without '\.\.'"):
        cellblock.read_file(session, "../a")
