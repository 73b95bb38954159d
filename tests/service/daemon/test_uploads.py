"""Files that come in parts: each appears when it is complete, or not at all."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from cellblock.errors import BusyError, FilesError
from cellblock.host.files import Files
from cellblock.service.daemon import uploads as module
from cellblock.service.daemon.uploads import Uploads
from processes import eventually


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def test_a_file_is_there_with_its_last_part(files: Files, tmp_path: Path) -> None:
    uploads = Uploads()
    for part in (b"a", b"", b"b"):
        assert await uploads.take(files, "f", "1", part, more=True) is None
        assert "f" not in os.listdir(tmp_path)
    info = await uploads.take(files, "f", "1", b"c", more=False)
    assert info is not None
    assert (info.size, (tmp_path / "f").read_bytes()) == (3, b"abc")


async def test_uploads_do_not_mix(files: Files, tmp_path: Path) -> None:
    uploads = Uploads()
    for number in ("1", "2"):
        await uploads.take(files, f"f{number}", number, number.encode(), more=True)
    for number in ("2", "1"):
        await uploads.take(files, f"f{number}", number, b"!", more=False)
    assert [(tmp_path / name).read_bytes() for name in ("f1", "f2")] == [b"1!", b"2!"]


async def test_what_is_given_up_leaves_nothing_and_can_begin_again(files: Files, tmp_path: Path) -> None:
    uploads = Uploads()
    await uploads.take(files, "f", "1", b"a", more=True)
    for _ in range(2):
        await uploads.give_up("1")
    assert os.listdir(tmp_path) == []
    await uploads.take(files, "f", "1", b"b", more=False)
    assert (tmp_path / "f").read_bytes() == b"b"


async def test_a_file_that_cannot_be_is_an_error_and_its_upload_is_over(files: Files, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    uploads = Uploads()
    with pytest.raises(FilesError):
        await uploads.take(files, "folder", "1", b"a", more=False)
    await uploads.take(files, "f", "1", b"b", more=False)
    assert sorted(os.listdir(tmp_path)) == ["f", "folder"]


async def test_there_is_a_limit_to_uploads(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 1)
    uploads = Uploads()
    await uploads.take(files, "f", "1", b"a", more=True)
    with pytest.raises(BusyError, match="try again later"):
        await uploads.take(files, "g", "2", b"a", more=True)
    await uploads.give_up("1")


async def test_an_upload_that_stops_is_given_up(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.01)
    uploads = Uploads()
    await uploads.take(files, "f", "1", b"a", more=True)
    await eventually(lambda: not uploads._uploads)
    assert os.listdir(tmp_path) == []
    await asyncio.sleep(0)
