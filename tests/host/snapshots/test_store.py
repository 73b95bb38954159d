"""Where files are kept: once each, as long as a snapshot has them, and within a limit."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock.errors import SnapshotError
from cellblock.host.snapshots import Snapshot, Snapshots, Store
from cellblock.launch.leftovers import remove_place

from .conftest import look, memory


def test_a_dropped_snapshot_is_gone(snapshots: Snapshots, workspace: Path, store: Store) -> None:
    (workspace / "file").write_bytes(b"1" * 100)
    first = snapshots.take()
    (workspace / "file").write_bytes(b"2" * 100)
    second = snapshots.take()
    assert store.bytes == 200
    snapshots.drop(first)
    snapshots.drop(first)
    assert store.bytes == 100
    with pytest.raises(SnapshotError, match="no longer exist"):
        snapshots.restore(first)
    with pytest.raises(SnapshotError, match="no longer exist"):
        snapshots.diff(second, first)
    snapshots.drop(second)
    assert snapshots.take().bytes == 100  # of what was read last, nothing has to be read again
    snapshots.close()


def test_a_snapshot_of_the_same_files_as_another_is_dropped_at_once(
    snapshots: Snapshots, workspace: Path, store: Store
) -> None:
    (workspace / "sub").mkdir()
    (workspace / "sub" / "file").write_text("1")
    first, second = snapshots.take(), snapshots.take()
    assert store.drop_shared(first)
    assert not store.drop_shared(first)
    assert not store.has(first)
    (workspace / "sub" / "file").write_text("2")
    third = snapshots.take()
    assert not store.drop_shared(second)  # a file would go
    with store._lock:  # another thread works on it
        assert not store.drop_shared(third)
    store.drop(second)
    snapshots.restore(third)
    assert (workspace / "sub" / "file").read_text() == "2"
    assert store.bytes == 1


def test_a_full_store_keeps_nothing_of_a_snapshot(workspace: Path, place: Path) -> None:
    with Store(place / "small", max_bytes=10) as store:
        snapshots = Snapshots(workspace, store, place / "journals")
        (workspace / "a").write_text("12345")
        snapshot = snapshots.take()
        (workspace / "b").write_text("1234")
        (workspace / "c").write_text("5678")
        with pytest.raises(SnapshotError, match="more than half of the 10 bytes") as caught:
            snapshots.take()
        assert caught.value.errno == errno.EDQUOT
        assert store.bytes == 5
        snapshots.restore(snapshot)
        assert os.listdir(workspace) == ["a"]


def test_a_snapshot_that_outlives_the_directory_can_be_kept_and_dropped(
    snapshots: Snapshots, workspace: Path, store: Store
) -> None:
    (workspace / "file").write_text("text")
    snapshot = snapshots.take()
    shutil.rmtree(store.directory)
    store.renew()
    again = Snapshot(snapshot.root)  # as a redo keeps the files before its undo
    store.keep(again)
    store.drop(again)
    assert (store.bytes, os.listdir(store.directory)) == (0, [])


def test_a_workspace_that_fills_the_store_leaves_room_for_another_one(tmp_path: Path, place: Path) -> None:
    places = [tmp_path / "loud", tmp_path / "quiet"]
    for path in places:
        path.mkdir()
    with Store(place / "small", max_bytes=1000) as store:
        loud, quiet = (Snapshots(path, store, place / "journals") for path in places)
        kept = []
        for number in range(10):
            (tmp_path / "loud" / "file").write_bytes(bytes([number]) * 50)
            kept.append(loud.take())
        (tmp_path / "loud" / "file").write_bytes(b"x" * 50)
        with pytest.raises(SnapshotError, match=f"files in {tmp_path / 'loud'} would take"):
            loud.take()
        assert store.bytes == 500
        (tmp_path / "quiet" / "file").write_bytes(b"x" * 200)
        quiet.take()
        assert store.bytes == 700
        with pytest.raises(SnapshotError):
            loud.take()
        for snapshot in kept[:3]:
            loud.drop(snapshot)
        loud.take()
        loud.close()
        quiet.close()


@settings(max_examples=15)
@given(st.lists(st.one_of(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), st.integers(0, 5)), max_size=20))
def test_the_store_has_what_snapshots_need_and_no_more(steps: list[tuple[str, int] | int]) -> None:
    directory = Path(tempfile.mkdtemp(dir=memory()))
    workspace = directory / "workspace"
    for name in "abc":
        (workspace / name).mkdir(parents=True)
    with Store(directory / "store") as store:
        snapshots, taken = Snapshots(workspace, store, directory / "journals"), []
        for step in steps:
            if isinstance(step, tuple):
                (workspace / step[0] / "file").write_text(str(step[1]))
                taken.append((snapshots.take(), look(workspace)))
            elif step < len(taken):
                snapshot, _ = taken.pop(step)
                if not store.drop_shared(snapshot):
                    snapshots.drop(snapshot)
        snapshots.close()
        files = [*store.directory.iterdir()]
        assert store.bytes == sum(path.stat().st_size for path in files)
        assert {path.read_bytes() for path in files} == {
            value[-1] for _, was in taken for value in was.values() if len(value) > 2
        }
        for snapshot, was in taken:
            snapshots.restore(snapshot)
            assert look(workspace) == was
    remove_place(str(directory))
