"""A restore happens as a whole or not at all: if its process is killed, if the disk is full, if the workspace changes."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellblock.common.whole_file import sync
from cellblock.errors import SnapshotError
from cellblock.host.snapshots import Snapshot, Snapshots, restore, trash
from cellblock.host.snapshots.plan import Step
from cellblock.host.snapshots.trash import Reason
from cellblock.host.snapshots.undo import Interval
from cellblock.launch.leftovers import remove_place
from full_disk import file_size_limit

from .conftest import Spoiled, before_call, look, spoil, trashed

MOST_CALLS = 400
RESCUED = ".cellblock-before-restore-"


def killed_at(number: int, snapshots: Snapshots, snapshot: Snapshot) -> bool:
    """Restore in a process of its own that ends before its nth system call; return whether there were as many."""
    pid = os.fork()
    if pid == 0:
        try:
            with before_call(number, lambda: os._exit(9)):
                snapshots.restore(snapshot)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, 9)
    return status == 9


@pytest.mark.parametrize("stride", [30, pytest.param(1, marks=pytest.mark.slow)])
def test_a_restore_that_is_killed_is_finished_or_has_not_begun(
    snapshots: Snapshots, workspace: Path, spoiled: Spoiled, stride: int
) -> None:
    snapshot, before, after = spoiled
    found = []
    for number in range(1, MOST_CALLS, stride):
        spoil(workspace)
        if not killed_at(number, snapshots, snapshot):
            break
        snapshots.recover()
        found.append(look(workspace))
        assert found[-1] in (before, after)
        assert not snapshots.recover()
    assert found.count(after) > 20 / stride
    assert found.count(before) > 20 / stride
    assert look(workspace) == before


@pytest.mark.slow
def test_what_was_changed_after_a_kill_stays(snapshots: Snapshots, workspace: Path, spoiled: Spoiled) -> None:
    snapshot, _, _ = spoiled
    for number in range(1, MOST_CALLS, 3):
        spoil(workspace)
        assert killed_at(number, snapshots, snapshot)
        if not (workspace / "new").exists():  # the first things were moved away
            break
    (workspace / "mine").write_text("mine")
    (workspace / "changes").write_text("mine, too")
    assert snapshots.recover()
    assert (workspace / "mine").read_text() == "mine"
    assert (workspace / "changes").read_text() == "mine, too"
    assert (workspace / "old" / "inner" / "data").read_text() == "old"


@pytest.mark.slow
def test_a_failure_at_any_step_changes_nothing(snapshots: Snapshots, workspace: Path, spoiled: Spoiled) -> None:
    snapshot, before, after = spoiled

    def fail() -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    found = []
    for number in range(1, MOST_CALLS):
        spoil(workspace)
        code = None
        with before_call(number, fail) as happened:
            try:
                snapshots.restore(snapshot)
            except SnapshotError as error:
                code = error.errno
        if not happened():
            break
        found.append(code)
        snapshots.recover()
        present = look(workspace)
        rescued = {path for path in present if path.startswith(RESCUED)}
        assert not rescued or code is None  # what the trash could not take
        assert {path: present[path] for path in present.keys() - rescued} == (before if code is None else after)
        for path in workspace.glob(f"{RESCUED}*"):
            shutil.rmtree(path)
    assert found.count(errno.ENOMEM) > 20
    assert look(workspace) == before


@pytest.mark.parametrize("room", [0, 3, 60, 600])
def test_a_full_disk_changes_nothing(snapshots: Snapshots, workspace: Path, spoiled: Spoiled, room: int) -> None:
    snapshot, _, after = spoiled
    with file_size_limit(room), pytest.raises(SnapshotError, match="free some space, then try again") as caught:
        snapshots.restore(snapshot)
    assert caught.value.errno == errno.EFBIG
    assert look(workspace) == after
    assert snapshots.recover() is False


def test_a_workspace_that_keeps_changing_is_left_as_it_is(
    snapshots: Snapshots, workspace: Path, spoiled: Spoiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot, _, _ = spoiled
    apply = restore._apply

    def changing(*args: Any) -> None:
        (workspace / "another").mkdir(exist_ok=True)
        (workspace / "new").rename(workspace / "other")
        (workspace / "another").rename(workspace / "new")
        (workspace / "other").rename(workspace / "another")
        apply(*args)

    monkeypatch.setattr(restore, "_apply", changing)
    with pytest.raises(SnapshotError, match="something keeps changing them"):
        snapshots.restore(snapshot)
    assert (workspace / "changes").read_text() == "after"


def replace(workspace: Path) -> None:
    (workspace / "other").write_text("mine")
    (workspace / "other").replace(workspace / "changes")


def append(workspace: Path) -> None:
    with (workspace / "changes").open("a") as file:
        file.write("mine")


def move(workspace: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        (workspace / "changes").rename(workspace / "mine")


@pytest.mark.parametrize("interfere", [replace, append, move])
@pytest.mark.parametrize("stride", [25, pytest.param(1, marks=pytest.mark.slow)])
def test_all_or_nothing_is_restored_of_what_nobody_else_writes_to_and_what_they_write_stays(
    snapshots: Snapshots, workspace: Path, spoiled: Spoiled, interfere: Callable[[Path], None], stride: int
) -> None:
    snapshot, before, after = spoiled
    theirs = {"changes", "other", "mine"}

    def fail() -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    failed = 0
    for number in range(1, MOST_CALLS, stride):
        for then in (lambda: None, fail):
            spoil(workspace)
            remove_place(str(snapshots.trash.directory))
            expected = before
            with before_call(number, lambda: interfere(workspace)) as happened:
                try:
                    snapshots.restore(snapshot, then)
                except SnapshotError:
                    expected = after
                    failed += 1
            found = look(workspace)
            assert {path: found[path] for path in found.keys() - theirs if not path.startswith(RESCUED)} == {
                path: expected[path] for path in expected.keys() - theirs
            }
            kept = {path: str(entry[-1]) for path, entry in found.items() if path in theirs or path.startswith(RESCUED)}
            kept |= {f"{path} of the trash": text for path, text in trashed(snapshots)}
            if expected is after and happened():
                assert "mine" in kept["changes"] if interfere is replace else "after" in " ".join(kept.values())
            elif expected is before:
                assert any("after" in text or "mine" in text for text in kept.values())
            assert not snapshots.recover()
            for path in workspace.glob(f"{RESCUED}*"):
                shutil.rmtree(path)
        if not happened():
            break
    assert failed > 20 / stride


def test_a_restore_needs_no_further_thread(
    snapshots: Snapshots, workspace: Path, spoiled: Spoiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot, before, _ = spoiled

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    snapshots.restore(snapshot)
    assert look(workspace) == before


@pytest.mark.parametrize("which", [0, -1])
def test_a_restore_that_does_not_get_to_the_disk_is_rolled_back(
    snapshots: Snapshots, workspace: Path, spoiled: Spoiled, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """The first wait is for staged files, the last one for folders, after the new kernel was made."""
    snapshot, _, after = spoiled
    waits: list[int] = []
    works = 1000

    def fail(descriptor: int) -> None:
        waits.append(descriptor)
        if len(waits) > works:
            raise OSError(errno.EIO, "no disk")
        sync(descriptor)

    monkeypatch.setattr(restore, "sync", fail)
    snapshots.restore(snapshot)
    works = range(len(waits))[which]
    spoil(workspace)
    waits.clear()
    with pytest.raises(SnapshotError, match="no disk"):
        snapshots.restore(snapshot)
    assert look(workspace) == after


def test_each_version_that_a_restore_meets_is_kept(
    snapshots: Snapshots, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others save the file again at each try, so that the restore meets and replaces several versions."""
    file = workspace / "file"
    file.write_text("before")
    snapshot = snapshots.take()
    file.write_text("version 0")
    versions = ["version 2", "version 1"]
    do = restore._do

    def interfered(top: int, staging: int, step: Step) -> None:
        do(top, staging, step)
        if step.do == "remove" and versions:
            file.write_text(versions.pop())

    monkeypatch.setattr(restore, "_do", interfered)
    changes = snapshots.restore(snapshot)
    assert file.read_text() == "before"
    assert sorted(text for _, text in trashed(snapshots)) == ["version 0", "version 1", "version 2"]
    assert snapshots.trash.find(changes.trash, "file").holds("file")


def test_where_the_files_are_that_the_trash_did_not_take_is_reported(
    snapshots: Snapshots, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshots.take()
    (workspace / "folder").mkdir()
    for name in ("folder/large", "folder/small", "other"):
        (workspace / name).write_text(name)
    interval = Interval(before.root, snapshots.take().root, ())
    copy = trash._copy

    def full(folder: int, name: str, parent: int, to: str) -> None:
        if name == "large":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        copy(folder, name, parent, to)

    monkeypatch.setattr(trash, "_copy", full)
    undone = snapshots.undo([interval], lambda: None, Reason("undo"))
    (folder,) = (path.name for path in workspace.iterdir())
    assert (workspace / folder / "folder/large").read_text() == "folder/large"
    assert {action.path: action.restorable for action in undone.actions} == {"folder": False, "other": True}
    assert undone.left == f"'folder' could not be moved to the trash: the earlier content is in {folder} in the workspace"
    assert undone.later == []
