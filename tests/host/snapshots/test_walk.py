"""What is found in a workspace, what is left out and said to be, and what is read again."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cellblock.errors import SnapshotError
from cellblock.host.snapshots import Snapshots, Store

from .conftest import Make


def test_what_is_too_much_is_left_out_named_and_never_removed(make: Make, workspace: Path) -> None:
    for name in ("a", "b", "c"):
        (workspace / name).write_bytes(b"1234")
    (workspace / "large").write_bytes(b"123456")
    snapshots = make(max_file_bytes=5, max_total_bytes=8)
    snapshot = snapshots.take()
    assert snapshot.root.totals.left_out == 2
    assert dict(snapshot.left_out)["large"] == "it is too large"
    assert (snapshot.files, snapshot.bytes) == (2, 8)
    (workspace / "large").write_bytes(b"12345678")
    left_out = dict(snapshot.left_out)
    for name in ("a", "b", "c"):
        (workspace / name).write_bytes(b"9")
    snapshots.restore(snapshot)
    assert (workspace / "large").read_bytes() == b"12345678"
    assert {name for name in "abc" if (workspace / name).read_bytes() == b"9"} == left_out.keys() - {"large"}


def test_in_a_folder_of_too_many_files_nothing_is_removed(make: Make, workspace: Path) -> None:
    for number in range(10):
        (workspace / str(number)).write_text("1")
    snapshots = make(max_files=5)
    snapshot = snapshots.take()
    assert snapshot.files == 5
    assert snapshot.left_out == (("", "there are more files than a snapshot holds"),)
    for number in range(10):
        (workspace / str(number)).write_text("2")
    snapshots.restore(snapshot)
    assert sorted(path.read_text() for path in workspace.iterdir()) == ["1"] * 5 + ["2"] * 5


def test_more_files_than_anybody_looks_at_are_an_error(make: Make, workspace: Path) -> None:
    snapshots = make(max_files=1)
    snapshot = snapshots.take()
    for number in range(11):
        (workspace / str(number)).touch()
    with pytest.raises(SnapshotError, match="more than 10 files"):
        snapshots.restore(snapshot)
    assert len(os.listdir(workspace)) == 11


def test_ignored_names_stay_and_are_named(make: Make, workspace: Path) -> None:
    for name in (".git/config", "sub/.git/config", "out/model.ckpt", "top/secret", "sub/top/secret"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text("1")
    snapshots = make(ignore=(".git", "*.ckpt", "/top/secret"))
    snapshot = snapshots.take()
    assert sorted(path for path, _ in snapshot.left_out) == [".git", "out/model.ckpt", "sub/.git", "top/secret"]
    for path in workspace.rglob("*"):
        if path.is_file():
            path.write_text("2")
    snapshots.restore(snapshot)
    assert (workspace / "sub/top/secret").read_text() == "1"
    for name, _ in snapshot.left_out:
        assert (workspace / name).is_dir() or (workspace / name).read_text() == "2"


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_what_cannot_be_read_is_left_out_and_stays(snapshots: Snapshots, workspace: Path) -> None:
    (workspace / "file").touch(0)
    (workspace / "folder").mkdir(0)
    (workspace / "names").mkdir()
    (workspace / "names" / "file").touch()
    (workspace / "names").chmod(0o400)
    snapshot = snapshots.take()
    assert dict(snapshot.left_out) == {
        "file": "it cannot be read",
        "folder": "it cannot be listed",
        "names/file": "it cannot be read",
    }
    assert snapshots.restore(snapshot).removed == ()
    assert sorted(os.listdir(workspace)) == ["file", "folder", "names"]


def test_special_files_are_left_out_and_do_not_stop_anything(snapshots: Snapshots, workspace: Path) -> None:
    os.mkfifo(workspace / "fifo")
    snapshot = snapshots.take()
    assert snapshot.left_out == (("fifo", "it is a FIFO, a socket or a device"),)
    os.mkfifo(workspace / "new")
    assert snapshots.restore(snapshot).removed == ("new",)
    assert os.listdir(workspace) == ["fifo"]


def test_placeholders_are_not_part_of_the_state(snapshots: Snapshots, workspace: Path) -> None:
    empty = snapshots.take()
    (workspace / ".vscode").mkdir(0o1500)
    snapshot = snapshots.take()
    assert snapshot.left_out == ()
    assert snapshots.diff(snapshot).new == ()
    snapshots.restore(empty)
    assert stat.S_IMODE((workspace / ".vscode").stat().st_mode) == 0o1500


def test_a_file_that_changes_within_a_tick_of_the_clock_is_read_again(snapshots: Snapshots, workspace: Path) -> None:
    taken = []
    for number in range(20):
        (workspace / "file").write_bytes(bytes([number]))  # as long as before, and often with the same times
        taken.append(snapshots.take())
    for number, snapshot in enumerate(taken):
        snapshots.restore(snapshot)
        assert (workspace / "file").read_bytes() == bytes([number])


def test_what_has_not_changed_is_not_read_again(
    snapshots: Snapshots, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "sub").mkdir()
    (workspace / "sub" / "old").write_text("1")
    (workspace / "sub" / "new").write_text("1")
    monkeypatch.setattr("cellblock.host.snapshots.walk._TICK", -(10**12))
    first = snapshots.take()
    (workspace / "sub" / "new").write_text("22")
    opened = []
    add = Store.add
    monkeypatch.setattr(Store, "add", lambda *args: opened.append(1) or add(*args))  # type: ignore[func-returns-value]
    second = snapshots.take()
    assert len(opened) == 1
    assert snapshots.take().root is second.root is not first.root
    assert len(opened) == 1
