"""Undo from contents before and after cells: it equals a history without the undone cells, and loses nothing of anybody's."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cellblock.errors import SnapshotError
from cellblock.host.snapshots import Snapshots
from cellblock.host.snapshots.snapshots import Reverted
from cellblock.host.snapshots.trash import Reason
from cellblock.host.snapshots.undo import Interval

from .conftest import Make, look, trashed

_NAMES = ["a", "b", "c", "a/x", "b/y"]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _make(path: Path, entry: str | None) -> None:
    for parent in reversed(path.parents):
        if parent.is_symlink() or (parent.exists() and not parent.is_dir()):
            parent.unlink()
        parent.mkdir(exist_ok=True)
    _remove(path)
    if entry is None:
        path.mkdir()
    elif entry.startswith("-> "):
        path.symlink_to(entry[3:])
    else:
        path.write_text(entry)
        os.utime(path, (1, 1))


def _do(workspace: Path, step: tuple[str, str, str | None]) -> None:
    action, name, what = step
    path = workspace / name
    if action == "make":
        _make(path, what)
    elif action == "remove":
        _remove(path)
    elif action == "mode":
        if path.exists() and not path.is_symlink():
            path.chmod(int(str(what), 8))
    elif path.exists():
        target = workspace / str(what)
        _make(target, "")
        _remove(target)
        if path.exists():
            path.rename(target)


def _texts(workspace: Path) -> set[str]:
    return {path.read_text() for path in workspace.rglob("*") if path.is_file()}


def _trashed(snapshots: Snapshots) -> set[str]:
    return {text for _, text in trashed(snapshots)}


def _undo(snapshots: Snapshots, intervals: list[Interval]) -> Reverted:
    return snapshots.undo(intervals, lambda: None, Reason("undo"))


def _modes(workspace: Path) -> dict[str, object]:
    return {path: entry[:2] if entry[0] == "folder" else entry for path, entry in look(workspace).items()}


def _history(seed: int, snapshots: Snapshots, workspace: Path, scratch: Path, *, clash: bool) -> None:
    chance, numbers = random.Random(seed), itertools.count()
    done: list[tuple[bool, tuple[str, str, str | None]]] = []
    pairs: list[Interval] = []
    for number in range(25):
        there = sorted(str(path.relative_to(workspace)) for path in workspace.rglob("*"))
        kind = chance.choice(["cell", "cell", "move", "remove", "mode", "other", "other", "undo", "undo", *["clash"] * clash])
        entry = chance.choice([f"{seed}-{next(numbers)}", None, "-> b"])
        cell, step = kind in ("cell", "move", "remove", "mode"), None
        if kind == "cell":
            step = ("make", chance.choice(_NAMES), entry)
        elif kind == "move" and there:
            one, two = chance.choice(there), chance.choice(_NAMES)
            if not (one == two or one.startswith(f"{two}/") or two.startswith(f"{one}/")):
                step = ("move", one, two)
        elif kind == "remove" and there:
            step = ("remove", chance.choice(there), None)
        elif kind == "mode" and there:
            step = ("mode", chance.choice(there), chance.choice(["700", "755", "1777"]))
        elif kind == "other":
            at = {path: workspace / path for path in there}
            folders = ["", *(f"{path}/" for path, one in at.items() if one.is_dir() and not one.is_symlink())]
            step = ("make", f"{chance.choice(folders)}other{number}", entry)
        elif kind == "clash" and there:
            step = chance.choice(
                [("remove", chance.choice(there), None), ("make", chance.choice(there), f"{seed}-{next(numbers)}")]
            )
        elif kind == "undo" and pairs:
            count = min(chance.choice([1, 1, 2, 3, 4]), len(pairs))
            texts, before = _texts(workspace), _modes(workspace)
            try:
                undone = _undo(snapshots, pairs[-count:])
            except SnapshotError:
                assert _modes(workspace) == before
                continue
            assert texts <= _texts(workspace) | _trashed(snapshots)
            after = _modes(workspace)
            snapshots.redo(undone.back, undone.entry, lambda: None, Reason("redo"))
            assert _modes(workspace) == before
            _undo(snapshots, pairs[-count:])
            assert _modes(workspace) == after
            for index in [index for index, (by_cell, _) in enumerate(done) if by_cell][-count:][::-1]:
                del done[index]
            del pairs[-count:]
            if not clash:
                shutil.rmtree(scratch, ignore_errors=True)
                scratch.mkdir()
                for _, earlier in done:
                    _do(scratch, earlier)
                assert _modes(scratch) == _modes(workspace)
        if step is not None:
            snapshot = snapshots.take()
            _do(workspace, step)
            done.append((cell, step))
            if cell:
                pairs.append(Interval(snapshot.root, snapshots.take().root, ()))


@pytest.mark.parametrize("clash", [False, True])
@pytest.mark.parametrize("count", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_an_undo_equals_a_history_without_the_undone_cells_and_loses_nothing(
    snapshots: Snapshots, workspace: Path, tmp_path: Path, count: int, clash: bool
) -> None:
    for seed in range(count):
        for path in workspace.iterdir():
            _remove(path)
        _history(seed, snapshots, workspace, tmp_path / "scratch", clash=clash)


@pytest.fixture
def ran(snapshots: Snapshots, workspace: Path) -> Callable[[Callable[[], object]], Interval]:
    """Run something as a cell."""

    def run(cell: Callable[[], object]) -> Interval:
        before = snapshots.take()
        cell()
        return Interval(before.root, snapshots.take().root, ())

    return run


def test_a_name_that_is_no_text_is_undone_and_redone(
    snapshots: Snapshots, workspace: Path, ran: Callable[[Callable[[], object]], Interval]
) -> None:
    path = Path(os.fsdecode(os.fsencode(workspace) + b"/\xff\n\xfe"))
    pair = ran(lambda: path.write_text("odd"))
    undone = _undo(snapshots, [pair])
    assert not path.exists()
    snapshots.redo(undone.back, undone.entry, lambda: None, Reason("redo"))
    assert path.read_text() == "odd"


def test_the_permissions_of_the_workspace_are_undone_and_redone(
    snapshots: Snapshots, workspace: Path, ran: Callable[[Callable[[], object]], Interval]
) -> None:
    workspace.chmod(0o750)
    pair = ran(lambda: workspace.chmod(0o700))
    undone = _undo(snapshots, [pair])
    assert (stat.S_IMODE(workspace.stat().st_mode), [file.path for file in undone.actions]) == (0o750, ["."])
    snapshots.redo(undone.back, undone.entry, lambda: None, Reason("redo"))
    assert stat.S_IMODE(workspace.stat().st_mode) == 0o700
    workspace.chmod(0o711)
    assert (_undo(snapshots, [pair]).later, stat.S_IMODE(workspace.stat().st_mode)) == (["."], 0o711)


def test_folders_that_are_nested_too_deep_prevent_an_undo(make: Make, workspace: Path) -> None:
    snapshots = make(max_depth=2)
    before = snapshots.take()
    (workspace / "1" / "2" / "3" / "4").mkdir(parents=True)
    pair = Interval(before.root, snapshots.now(before), ())
    with pytest.raises(SnapshotError, match="'1/2/3' cannot be removed: it is nested too deep"):
        _undo(snapshots, [pair])


def test_what_others_save_between_two_cells_stays_if_nobody_looked_between_them(snapshots: Snapshots, workspace: Path) -> None:
    """By the time of its last change; what is older than both may have come with a folder that a cell has moved."""

    def at(name: str) -> int:
        return (workspace / name).stat().st_ctime_ns

    def wait() -> int:
        (workspace / "clock").touch()
        begun = at("clock")
        while at("clock") <= begun:
            (workspace / "clock").write_text("")
        return at("clock")

    _make(workspace / "d" / "old", "old")
    before, began = snapshots.take(), wait()
    (workspace / "one").write_text("cell")
    ended = wait() - 1
    (workspace / "theirs").write_text("somebody else")
    begins = wait()
    (workspace / "d").rename(workspace / "moved")
    (workspace / "two").write_text("cell")
    spans = [(began, ended), (begins, wait())]
    after = snapshots.take()
    _undo(snapshots, [Interval(before.root, after.root, spans)])
    assert sorted(look(workspace)) == ["d", "d/old", "theirs"]


def test_a_trash_that_takes_nothing_loses_nothing(
    snapshots: Snapshots, workspace: Path, ran: Callable[[Callable[[], object]], Interval]
) -> None:
    pair = ran(lambda: [(workspace / name).write_text(name) for name in ("new", "other")])
    snapshots.trash.directory.parent.mkdir(parents=True, exist_ok=True)
    snapshots.trash.directory.write_text("no folder")
    undone = _undo(snapshots, [pair])
    assert undone.left.startswith("'new' and 1 more could not be moved to the trash: the earlier content is in .cellblock-")
    assert undone.later == []
    for name in ("new", "other"):
        (kept,) = workspace.glob(f".cellblock-before-restore-*/{name}")
        assert kept.read_text() == name


def test_a_file_with_another_name_cannot_be_changed_in_the_trash(
    snapshots: Snapshots, workspace: Path, ran: Callable[[Callable[[], object]], Interval]
) -> None:
    (workspace / "one").write_text("mine")
    pair = ran(lambda: os.link(workspace / "one", workspace / "two"))
    _undo(snapshots, [pair])
    (workspace / "one").write_text("changed")
    assert "mine" in _trashed(snapshots)


def test_what_is_in_the_trash_comes_back_and_what_is_there_now_takes_its_place(
    snapshots: Snapshots, workspace: Path, ran: Callable[[Callable[[], object]], Interval]
) -> None:
    pair = ran(lambda: _make(workspace / "d" / "new", "theirs"))
    undone = _undo(snapshots, [pair])
    _make(workspace / "d" / "new", "now")
    changes = snapshots.put_back(undone.entry, "d/new", Reason("trash"))
    assert (changes.written, (workspace / "d" / "new").read_text()) == (("d/new",), "theirs")
    assert "now" in _trashed(snapshots)
