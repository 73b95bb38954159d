"""What a restore writes and removes, and what it has to leave alone."""

from __future__ import annotations

import stat
from pathlib import Path

from cellblock.host.snapshots import Snapshots

from .conftest import look


def test_a_new_folder_goes_but_for_what_is_ignored_in_it(snapshots: Snapshots, workspace: Path) -> None:
    snapshot = snapshots.take()
    (workspace / "clone" / ".git").mkdir(parents=True)
    (workspace / "clone" / "file").write_text("1")
    changes = snapshots.restore(snapshot)
    assert [*look(workspace)] == ["clone", "clone/.git"]
    assert (changes.removed, changes.kept) == (("clone/file",), ("clone/.git",))


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
