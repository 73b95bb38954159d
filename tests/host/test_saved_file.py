"""Files of saved sessions: complete or not there, and read without believing anything that they say."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellblock.errors import InvalidInputError, StoreError
from cellblock.host.saved_file import CELLS, MANIFEST, VARIABLES, WORKSPACE, LoadedFile, SavedFile
from cellblock.model import HistoryEntry
from cellblock.wire.saved import MAX_STATE, Group, Manifest, State, write

STATE = State((Group(("x",), 4, False),), {}, (), {}, ".", 3, "3.11", {}, ())
ENTRIES = [HistoryEntry("x = 1", "success", 1), HistoryEntry("\ud800 é", "died", None)]


def save(path: Path, data: bytes = b"1234", state: State = STATE) -> None:
    file = SavedFile(path)
    try:
        file.open()
        file.begin(VARIABLES)
        file.write(data)
        file.finish(state, ENTRIES)
    finally:
        file.close()


def load(path: Path) -> tuple[State, list[HistoryEntry], bytes]:
    file = LoadedFile(path)
    try:
        file.open()
        return file.manifest.state, file.cells, b"".join(file.variables())
    finally:
        file.close()


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "s.cellblock"
    save(path)
    assert load(path) == (STATE, ENTRIES, b"1234")
    assert path.stat().st_mode & 0o777 == 0o600
    save(path, b"5678")
    assert load(path)[2] == b"5678"
    assert os.listdir(tmp_path) == ["s.cellblock"]


def test_a_file_that_is_not_complete_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "s.cellblock"
    save(path)
    file = SavedFile(path)
    file.open()
    file.begin(VARIABLES)
    file.write(b"other")
    assert os.listdir(tmp_path) == ["s.cellblock"], "it has no name yet"
    file.close()
    file.close()
    assert os.listdir(tmp_path) == ["s.cellblock"]
    assert load(path)[2] == b"1234"


def test_a_full_disk_is_told_and_the_file_before_stays(tmp_path: Path) -> None:
    path = tmp_path / "s.cellblock"
    save(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
        with pytest.raises(StoreError, match=r"s\.cellblock cannot be written: File too large; nothing was changed"):
            save(path, b"x" * 2_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == ["s.cellblock"]
    assert load(path)[2] == b"1234"


def test_a_place_where_no_file_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "missing" / "s", tmp_path / "file" / "s"):
        with pytest.raises(InvalidInputError):
            save(path)
    for path in (tmp_path / "missing", tmp_path / ("x" * 300)):
        with pytest.raises(StoreError, match="cannot be loaded"):
            load(path)


def archive(path: Path, change: Callable[[dict[str, bytes]], object] = lambda _: None, **options: Any) -> None:
    """Write a file as a stranger might."""
    save(path)
    with zipfile.ZipFile(path) as made:
        members = {name: made.read(name) for name in made.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", **options) as made:
        for name, data in members.items():
            made.writestr(name, data)


def manifest(**fields: Any) -> Callable[[dict[str, bytes]], object]:
    def change(members: dict[str, bytes]) -> None:
        told = json.loads(members[MANIFEST])
        for name, value in fields.items():
            (told if name in told else told["state"])[name] = value
        members[MANIFEST] = json.dumps(told).encode()

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: m.update({"../../etc/passwd": b""}), "must hold"),
        (lambda m: m.pop(VARIABLES), "must hold"),
        (lambda m: m.pop(MANIFEST), "must hold"),
        (lambda m: m.update({MANIFEST: b" " * (MAX_STATE + 1)}), "limit"),
        (lambda m: m.update({MANIFEST: b"[" * 100_000}), "not valid JSON"),
        (lambda m: m.update({MANIFEST: b"\xff"}), "JSON"),
        (lambda m: m.update({CELLS: b"{}\n"}), "KeyError"),
        (lambda m: m.update({CELLS: b'{"code": 1, "status": "success", "execution_count": 1}\n'}), "wrong type"),
        (lambda m: m.update({CELLS: b'{"code": "", "status": {}, "execution_count": 1}\n'}), "wrong type"),
        (lambda m: m.update({CELLS: b'{"code": "", "status": "died", "execution_count": 1}\n' * 1001}), "more than"),
        (lambda m: m.update({CELLS: b" " * 2_100_000}), "more than"),
        (lambda m: m.update({VARIABLES: b"123"}), "do not have the lengths"),
        (manifest(format=2), "format 2"),
        (manifest(groups=[{"names": ["x"], "size": -1, "code": False}]), "do not have the lengths"),
        (manifest(groups=[{"names": "x", "size": 4, "code": False}]), "must be a list"),
        (manifest(groups=[{"names": ["x"], "size": 4, "code": False, "more": 1}]), "unknown"),
        (manifest(environment={"a": 1}), "environment"),
        (manifest(imports=[1]), "imports"),
        (manifest(left_out=[["x"]]), "left_out"),
    ],
)
def test_what_is_not_a_saved_session_is_refused(
    tmp_path: Path, change: Callable[[dict[str, bytes]], object], why: str
) -> None:
    path = tmp_path / "s.cellblock"
    archive(path, change)
    with pytest.raises(InvalidInputError, match=f"cannot be loaded: it is not a saved session, or is damaged: .*{why}"):
        load(path)


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    archive(path, lambda m: m.update({WORKSPACE: b"\0" * 10_000_000}), compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(InvalidInputError, match="is compressed or encrypted"):
        load(path)


def test_an_archive_cannot_make_the_reader_read_more_than_there_is(tmp_path: Path) -> None:
    path = tmp_path / "s.cellblock"
    archive(path)
    whole = path.read_bytes()
    end = whole.rindex(b"PK\5\6")
    # A directory of 200 MB, which is there: it would become objects that take ten times as much.
    with path.open("wb") as file:
        file.write(whole[:end])
        file.seek(200_000_000, os.SEEK_CUR)
        file.write(b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 65535, 65535, 200_000_000, end, 0))
    with pytest.raises(InvalidInputError, match="limit"):
        load(path)


@pytest.mark.parametrize("name", [VARIABLES, CELLS])
def test_members_are_not_longer_than_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "s.cellblock"
    state = dataclasses.replace(STATE, groups=(Group(("x",), 10_000_000, False),))
    archive(path, lambda m: m.update({MANIFEST: write(Manifest(1, "", "", state))}))
    with zipfile.ZipFile(path, "a") as made:
        member = made.getinfo(name)
        member.file_size = member.compress_size = 10_000_000
        made._didModify = True  # type: ignore[attr-defined]  # so that the directory is written again
    with pytest.raises(InvalidInputError, match="overlap"):
        load(path)


@pytest.mark.parametrize("keep", [0, 1, 30, 100, 300, -30, -1])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "s.cellblock"
    save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InvalidInputError, match="damaged"):
        load(path)


def test_damaged_bytes_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "s.cellblock"
    save(path)
    path.write_bytes(path.read_bytes().replace(b"1234", b"1235"))
    with pytest.raises(InvalidInputError, match="CRC"):
        load(path)


def test_what_is_not_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
        with pytest.raises((InvalidInputError, StoreError), match="cannot be loaded"):
            load(path)
