"""Snapshots of a workspace: what comes back, what stays, and what is said."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.errors import SnapshotError
from cellblock.leftovers import remove_place
from cellblock.snapshots import FileChange, FileChanges, Snapshots, Store

from .conftest import Look, Make, look, memory


def test_restoring_brings_files_folders_links_modes_and_times_back(snapshots: Snapshots, workspace: Path) -> None:
    (workspace / "sub" / "empty").mkdir(parents=True)
    (workspace / "sub" / "data").write_text("data")
    (workspace / "sub" / "link").symlink_to("data")
    (workspace / "script").write_text("#!/bin/sh")
    (workspace / "script").chmod(0o755)
    os.utime(workspace / "script", (1, 1))
    (workspace / "stays").write_text("stays")
    before, untouched = look(workspace), (workspace / "stays").lstat()
    snapshot = snapshots.take()

    (workspace / "sub" / "data").write_text("other")
    (workspace / "sub" / "empty").rmdir()
    (workspace / "sub" / "link").unlink()
    (workspace / "script").chmod(0o600)
    (workspace / "new").mkdir()
    (workspace / "new" / "file").write_text("new")
    changes = snapshots.restore(snapshot)

    assert look(workspace) == before
    assert changes.written == ("script", "sub/data", "sub/link")
    assert changes.removed == ("new",)
    assert changes.kept == ()
    assert (workspace / "stays").lstat() == untouched
    assert snapshots.restore(snapshot).written == ()


NAMES = st.sampled_from(["a", "b", "c", "\udcff", "new\nline", ".git"])
FILES = st.tuples(st.just("file"), st.binary(max_size=3), st.sampled_from([0o644, 0o400, 0o755]))
LINKS = st.tuples(st.just("link"), st.sampled_from(["a", "../outside", "/", "missing"]))
TREES = st.recursive(
    st.one_of(FILES, LINKS),
    lambda inner: st.tuples(st.just("folder"), st.dictionaries(NAMES, inner, max_size=3), st.sampled_from([0o755, 0o500])),
    max_leaves=8,
)


def build(place: Path, tree: object) -> None:
    match tree:
        case ("file", bytes(data), int(mode)):
            place.write_bytes(data)
            place.chmod(mode)
        case ("link", str(target)):
            place.symlink_to(target)
        case ("folder", dict(inner), int(mode)):
            place.mkdir()
            for name, each in inner.items():
                build(place / name, each)
            place.chmod(mode)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_place(str(path))  # whatever modes it has
    else:
        path.unlink(missing_ok=True)


def covered(found: Look) -> Look:
    return {path: value for path, value in found.items() if ".git" not in path.split("/")}


@given(st.dictionaries(NAMES, TREES, max_size=4), st.dictionaries(NAMES, TREES, max_size=4), st.sets(NAMES))
def test_any_tree_comes_back_from_any_other(before: dict[str, object], after: dict[str, object], gone: set[str]) -> None:
    with contextlib.ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(dir=memory()))
        stack.callback(remove_place, str(directory))
        store = stack.enter_context(Store(directory / "store"))
        workspace = directory / "workspace"
        workspace.mkdir()
        snapshots = Snapshots(workspace, store, directory / "journals")
        for name, tree in before.items():
            build(workspace / name, tree)
        snapshot, was = snapshots.take(), look(workspace)
        for name in {*gone, *after} - {".git"}:
            remove(workspace / name)
        for name, tree in after.items():
            if name != ".git" or ".git" not in before:
                build(workspace / name, tree)
        now = look(workspace)

        try:
            changes = snapshots.restore(snapshot)
        except SnapshotError as error:
            if error.errno != errno.ENOTEMPTY:  # a folder with .git in it is where a file was
                raise
            assert look(workspace) == now
            return
        restored = look(workspace)
        extra = {path for path in covered(restored) if path not in was}
        # What is left of new folders is there for what is kept in them.
        assert all(any(kept.startswith(f"{path}/") for kept in changes.kept) for path in extra)
        assert {path: value for path, value in covered(restored).items() if path not in extra} == covered(was)
        assert {path: value for path, value in now.items() if ".git" in path.split("/")}.items() <= restored.items()
        assert [path for path in os.listdir(workspace) if path.startswith(".cellblock")] == []


def test_what_is_kept_of_many_files_does_not_keep_the_collector_busy(snapshots: Snapshots, workspace: Path) -> None:
    """It looks at every object that it knows, and no other thread runs meanwhile."""
    for number in range(500):
        (workspace / str(number)).touch()
    gc.collect()
    before = len(gc.get_objects())
    snapshot = snapshots.take()
    changes = snapshots.diff(snapshot)
    gc.collect()
    assert len(snapshot.root.entries) == 500
    assert len(gc.get_objects()) - before < 100
    assert changes == FileChanges()


def test_of_many_changes_the_first_are_listed(snapshots: Snapshots, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellblock.snapshots.snapshots.MAX_FILE_CHANGES", 3)
    (workspace / "gone").touch()
    snapshot = snapshots.take()
    (workspace / "gone").unlink()
    for number in range(5):
        (workspace / str(number)).touch()
    changes = snapshots.diff(snapshot)
    assert [change.path for change in changes.new] == ["0", "1", "2"]
    assert [change.path for change in changes.deleted] == ["gone"]
    assert changes.more == 2


def test_a_snapshot_is_restored_elsewhere(snapshots: Snapshots, workspace: Path, make: Make, place: Path) -> None:
    (workspace / "sub").mkdir()
    (workspace / "sub" / "data").write_text("data")
    snapshot = snapshots.take()
    other = place / "other"
    other.mkdir()
    make(other).restore(snapshot)
    assert look(other) == look(workspace)
    (other / "sub" / "data").write_text("other")
    assert (workspace / "sub" / "data").read_text() == "data"


def test_what_changed_is_told(snapshots: Snapshots, workspace: Path) -> None:
    for name in ("same", "touched", "longer", "deleted", "becomes a folder"):
        (workspace / name).write_text("1")
    before = snapshots.take()
    os.utime(workspace / "touched", (1, 1))
    (workspace / "longer").write_text("12")
    (workspace / "deleted").unlink()
    (workspace / "becomes a folder").unlink()
    (workspace / "becomes a folder").mkdir()
    (workspace / "new").write_text("123")
    for changes in (snapshots.diff(before), snapshots.diff(before, snapshots.take())):
        assert changes.new == (FileChange("becomes a folder/", None, None), FileChange("new", None, 3))
        assert changes.changed == (FileChange("longer", 1, 2),)
        assert changes.deleted == (FileChange("becomes a folder", 1, None), FileChange("deleted", 1, None))


def test_what_is_too_much_is_left_out_named_and_never_removed(make: Make, workspace: Path) -> None:
    for name in ("a", "b", "c"):
        (workspace / name).write_bytes(b"1234")
    (workspace / "large").write_bytes(b"123456")
    snapshots = make(max_file_bytes=5, max_total_bytes=8)
    snapshot = snapshots.take()
    assert snapshot.left_out_count == 2
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


def test_a_new_folder_goes_but_for_what_is_ignored_in_it(snapshots: Snapshots, workspace: Path) -> None:
    snapshot = snapshots.take()
    (workspace / "clone" / ".git").mkdir(parents=True)
    (workspace / "clone" / "file").write_text("1")
    changes = snapshots.restore(snapshot)
    assert [*look(workspace)] == ["clone", "clone/.git"]
    assert (changes.removed, changes.kept) == (("clone/file",), ("clone/.git",))


def test_what_is_ignored_is_not_lost_for_a_file_in_its_way(snapshots: Snapshots, workspace: Path) -> None:
    (workspace / "name").write_text("1")
    (workspace / "other").write_text("1")
    snapshot = snapshots.take()
    (workspace / "name").unlink()
    (workspace / "name" / ".git").mkdir(parents=True)
    (workspace / "other").write_text("2")
    before = look(workspace)
    with pytest.raises(SnapshotError, match="'name': a folder is in the way"):
        snapshots.restore(snapshot)
    assert look(workspace) == before


def test_folders_and_files_that_were_closed_come_back(snapshots: Snapshots, workspace: Path) -> None:
    (workspace / "folder" / "inner").mkdir(parents=True)
    for name in ("folder/file", "folder/inner/file", "file"):
        (workspace / name).write_text("1")
    (workspace / "folder").chmod(0o500)
    before = look(workspace)
    snapshot = snapshots.take()
    (workspace / "folder").chmod(0o700)
    (workspace / "folder" / "file").write_text("2")
    (workspace / "folder" / "inner" / "new").mkdir(0o500)
    for name in ("folder/inner", "folder", "file"):
        (workspace / name).chmod(0)
    snapshots.diff(snapshot)
    assert stat.S_IMODE((workspace / "folder").stat().st_mode) == 0
    changes = snapshots.restore(snapshot)
    assert look(workspace) == before
    assert changes.removed == ("folder/inner/new",)


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


def test_a_set_user_id_bit_does_not_come_back(snapshots: Snapshots, workspace: Path) -> None:
    (workspace / "file").write_text("1")
    (workspace / "file").chmod(0o6755)
    snapshot = snapshots.take()
    (workspace / "file").unlink()
    snapshots.restore(snapshot)
    assert stat.S_IMODE((workspace / "file").stat().st_mode) == 0o755


def test_a_dropped_snapshot_is_gone(snapshots: Snapshots, workspace: Path, store: Store) -> None:
    (workspace / "file").write_bytes(b"1" * 100)
    first = snapshots.take()
    (workspace / "file").write_bytes(b"2" * 100)
    second = snapshots.take()
    assert store.bytes == 200
    snapshots.drop(first)
    snapshots.drop(first)
    assert store.bytes == 100
    with pytest.raises(SnapshotError, match="no longer kept"):
        snapshots.restore(first)
    with pytest.raises(SnapshotError, match="no longer kept"):
        snapshots.diff(second, first)
    snapshots.drop(second)
    assert snapshots.take().bytes == 100  # of what was read last, nothing has to be read again
    snapshots.close()


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
    monkeypatch.setattr("cellblock.snapshots.walk._TICK", -(10**12))
    first = snapshots.take()
    (workspace / "sub" / "new").write_text("22")
    opened = []
    add = Store.add
    monkeypatch.setattr(Store, "add", lambda *args: opened.append(1) or add(*args))  # type: ignore[func-returns-value]
    second = snapshots.take()
    assert len(opened) == 1
    assert snapshots.take().root is second.root is not first.root
    assert len(opened) == 1


def test_a_full_store_keeps_nothing_of_a_snapshot(workspace: Path, place: Path) -> None:
    with Store(place / "small", max_bytes=10) as store:
        snapshots = Snapshots(workspace, store, place / "journals")
        (workspace / "a").write_text("12345")
        snapshot = snapshots.take()
        (workspace / "b").write_text("1234")
        (workspace / "c").write_text("5678")
        with pytest.raises(SnapshotError, match="more than 10 bytes") as caught:
            snapshots.take()
        assert caught.value.errno == errno.EDQUOT
        assert store.bytes == 5
        snapshots.restore(snapshot)
        assert os.listdir(workspace) == ["a"]


def test_a_workspace_that_was_replaced_is_refused(snapshots: Snapshots, workspace: Path, outside: Path) -> None:
    snapshot = snapshots.take()
    workspace.rename(workspace.with_name("moved"))
    shutil.copytree(outside, workspace)
    for operation in (snapshots.take, lambda: snapshots.restore(snapshot), lambda: snapshots.diff(snapshot)):
        with pytest.raises(SnapshotError, match="no longer the same directory"):
            operation()
    assert look(workspace) == look(outside)


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
                snapshots.drop(taken.pop(step)[0])
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
