"""Snapshots of a workspace: what comes back, what stays, and what is said."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.errors import SnapshotError
from cellblock.host.snapshots import Snapshots, Store
from cellblock.launch.leftovers import remove_place
from cellblock.model.checkpoints import Changes, FileChange, FileChanges

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


@pytest.mark.slow
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
    monkeypatch.setattr("cellblock.host.snapshots.snapshots.MAX_FILE_CHANGES", 3)
    (workspace / "gone").touch()
    snapshot = snapshots.take()
    (workspace / "gone").unlink()
    for number in range(5):
        (workspace / str(number)).touch()
    changes = snapshots.diff(snapshot)
    assert [change.path for change in changes.new] == ["0", "1", "2"]
    assert [change.path for change in changes.deleted] == ["gone"]
    assert changes.more == 2
    assert replace(snapshots.restore(snapshot), trash="") == Changes(("gone",), ("0", "1", "2"), (), 2)


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


def test_a_workspace_that_was_replaced_is_refused(snapshots: Snapshots, workspace: Path, outside: Path) -> None:
    snapshot = snapshots.take()
    workspace.rename(workspace.with_name("moved"))
    shutil.copytree(outside, workspace)
    for operation in (snapshots.take, lambda: snapshots.restore(snapshot), lambda: snapshots.diff(snapshot)):
        with pytest.raises(SnapshotError, match="no longer the same directory"):
            operation()
    assert look(workspace) == look(outside)
