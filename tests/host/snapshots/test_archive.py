"""A snapshot as a tar stream, and what of such a stream is not in a directory."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellblock.host.snapshots import Missing, SnapshotLimits, Snapshots, Store, pack


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    for name, text in {
        "a": "",
        "deep/er/b": "x" * 511,
        "deep/c": "y" * 513,
        "big": "z" * 3_000_000,
        "ü\udcff": "name",
    }.items():
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (1000, 1000))
    (made / "empty").mkdir()
    (made / "link").symlink_to("a")
    os.chmod(made / "deep/c", 0o640)
    return made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store") as made:
        yield made


def packed(store: Store, workspace: Path, left_out: list[tuple[str, str]]) -> list[bytes]:
    snapshots = Snapshots(workspace, store, workspace.parent / "journals")
    try:
        return [*pack(store, snapshots.take(), left_out)]
    finally:
        snapshots.close()


def members(pieces: list[bytes]) -> dict[str, tuple[int, int, float]]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        return {one.name: (one.size, one.mode, one.mtime) for one in archive}


def test_files_and_folders_are_in_it_and_links_are_left_out(store: Store, workspace: Path) -> None:
    left_out: list[tuple[str, str]] = []
    found = members(packed(store, workspace, left_out))
    assert {*found} == {"a", "deep", "deep/er", "deep/er/b", "deep/c", "big", "ü\udcff", "empty"}
    assert found["deep/c"] == (513, 0o640, 1000.0)
    assert left_out == [("link", "it is a link")]


def test_what_was_not_kept_is_left_out(store: Store, workspace: Path) -> None:
    left_out: list[tuple[str, str]] = []
    snapshots = Snapshots(workspace, store, workspace.parent / "journals")
    snapshot = snapshots.take(SnapshotLimits(max_file_bytes=1000), lambda: False, lambda: False)
    assert snapshot is not None
    assert "big" not in members([*pack(store, snapshot, left_out)])
    assert ("big", "its content was not saved") in left_out
    snapshots.close()


def test_only_what_is_missing_is_passed_on(store: Store, workspace: Path) -> None:
    pieces = packed(store, workspace, [])
    (workspace / "a").unlink()
    (workspace / "deep/er/b").unlink()
    (workspace / "deep/er").rmdir()
    (workspace / "big").write_text("changed")
    (workspace / "deep/c").write_text("c" * 513)
    missing = Missing(iter(pieces), str(workspace))
    assert {*members([*missing.pieces()])} == {"a", "deep/er", "deep/er/b"}
    assert sorted(missing.changed) == ["big", "deep/c"]


def test_a_stream_in_small_pieces_is_the_same(store: Store, workspace: Path) -> None:
    data = b"".join(packed(store, workspace, []))
    (workspace / "big").unlink()
    small = (data[start : start + 1000] for start in range(0, len(data), 1000))
    found = b"".join(Missing(small, str(workspace)).pieces())
    with tarfile.open(fileobj=io.BytesIO(found)) as archive:
        (member,) = archive
        source = archive.extractfile(member)
        assert source is not None
        assert source.read() == b"z" * 3_000_000


def test_nothing_is_looked_for_behind_a_link(store: Store, workspace: Path, tmp_path: Path) -> None:
    pieces = packed(store, workspace, [])
    elsewhere = tmp_path / "elsewhere"
    (workspace / "deep").rename(elsewhere)
    (workspace / "deep").symlink_to(elsewhere)
    missing = Missing(iter(pieces), str(workspace))
    assert {*members([*missing.pieces()])} == {"deep/er", "deep/er/b", "deep/c"}
