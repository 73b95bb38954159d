"""What others have saved between cells is found by the times of its changes, and added to what an undo restores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cellblock.errors import SnapshotError
from cellblock.host.snapshots import Snapshots
from cellblock.host.snapshots.others import add_what_others_saved, has_others
from cellblock.host.snapshots.times import Origins
from cellblock.host.snapshots.tree import Folder, status_of

from .test_times import changed_by, later


def saved(change: Callable[[], object]) -> None:
    """Make a change, as somebody else, that shares its time with none of a cell."""
    later(time.time_ns())
    change()
    later(time.time_ns())


def names(folder: Folder) -> dict[str, object]:
    return {name: names(entry) if isinstance(entry, Folder) else None for name, entry in folder.entries.items()}


def test_files_links_and_empty_folders_of_others_are_added(snapshots: Snapshots, workspace: Path) -> None:
    before = snapshots.take().root
    first = changed_by(lambda: (workspace / "cells").mkdir())

    def others() -> None:
        (workspace / "cells" / "file").touch()
        (workspace / "link").symlink_to("nowhere")
        (workspace / "folder" / "empty").mkdir(parents=True)

    saved(others)
    between = snapshots.take().root
    second = changed_by(lambda: (workspace / "folder" / "empty").rmdir())
    later_still = snapshots.take().root
    found, along = add_what_others_saved(before, [between, later_still], [first, second], Origins())
    assert not along
    assert names(found) == {"cells": {"file": None}, "link": None, "folder": {"empty": {}}}
    assert names(before) == {}


def test_what_was_there_before_the_cells_is_not_theirs(snapshots: Snapshots, workspace: Path) -> None:
    saved((workspace / "old").touch)
    before = snapshots.take().root
    span = changed_by(lambda: (workspace / "old").rename(workspace / "new"))
    after = snapshots.take().root
    found, _ = add_what_others_saved(before, [after], [span], Origins())
    assert names(found) == {"old": None}
    assert not has_others(before, after, [span], Origins())


@pytest.mark.parametrize("folder_first", [True, False])
def test_nothing_is_both_a_folder_and_something_else(snapshots: Snapshots, workspace: Path, folder_first: bool) -> None:
    name = workspace / "name"
    (name.mkdir if folder_first else name.touch)()
    before = snapshots.take().root
    span = changed_by(name.rmdir if folder_first else name.unlink)
    saved(name.touch if folder_first else name.mkdir)
    with pytest.raises(SnapshotError, match="'name' was saved by somebody else between the cells"):
        add_what_others_saved(before, [snapshots.take().root], [span], Origins())


@pytest.mark.parametrize(
    ("change", "others"),
    [
        (Path.touch, True),
        (Path.mkdir, True),
        (os.mkfifo, True),
        (lambda path: path.symlink_to("nowhere"), True),
        (lambda path: (path / ".git").mkdir(parents=True), True),
        (lambda path: (path / "cell").unlink(missing_ok=True), False),
    ],
)
def test_whether_others_have_saved_something(
    snapshots: Snapshots, workspace: Path, change: Callable[[Path], object], others: bool
) -> None:
    before = snapshots.take().root
    span = changed_by((workspace / "cell").touch)
    saved(lambda: change(workspace / "theirs"))
    after = snapshots.take().root
    assert has_others(before, after, [span], Origins()) == others
    assert not has_others(after, after, [span], Origins())


def test_a_folder_like_git_counts_whoever_has_made_it(snapshots: Snapshots, workspace: Path) -> None:
    """Others may have saved something in it, which only a look at all of it would show."""
    before = snapshots.take().root
    span = changed_by((workspace / ".git").mkdir)
    assert has_others(before, snapshots.take().root, [span], Origins())


def test_the_origin_of_what_was_restored_decides(snapshots: Snapshots, workspace: Path) -> None:
    before = snapshots.take().root
    file = workspace / "file"
    span = changed_by(file.touch)
    after = snapshots.take().root
    entry = after.entries["file"]
    assert isinstance(entry, bytes)
    origins = Origins()
    assert not has_others(before, after, [span], origins)
    status = status_of(entry)
    assert status is not None
    origins.add({status: span[1] + 1})
    assert has_others(before, after, [span], origins)
