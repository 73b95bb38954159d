"""What a restore writes down before it changes anything, and who may."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellblock.errors import SnapshotError
from cellblock.host.snapshots import Snapshots, journal
from cellblock.host.snapshots.plan import Step

from .conftest import Make, Spoiled, before_call


def test_two_processes_do_not_restore_one_workspace_at_once(snapshots: Snapshots, make: Make, spoiled: Spoiled) -> None:
    snapshot, _, _ = spoiled
    refused = []

    def restore_too() -> None:
        with pytest.raises(SnapshotError, match="another program is restoring"):
            make().restore(snapshot)
        with pytest.raises(SnapshotError, match="another program is restoring"):
            make().recover()
        refused.append(True)

    with before_call(30, restore_too):
        snapshots.restore(snapshot)
    assert refused


@pytest.mark.parametrize("same", [True, False])
def test_an_entry_without_steps_waits_for_the_disk_only_if_it_is_not_the_workspaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """Names on one file system get to the disk in the order in which they changed."""
    found: list[str] = []
    monkeypatch.setattr(journal, "sync_file", lambda _: found.append("file"))
    monkeypatch.setattr(journal, "sync_directory", lambda _: found.append("directory"))
    monkeypatch.setattr(journal.Journal, "is_on", lambda *_: same)
    made = journal.Journal(tmp_path, tmp_path / "workspace")
    made.write_without_steps("staging", os.stat(tmp_path))
    assert found == ([] if same else ["file", "directory"])
    made.write("staging", os.stat(tmp_path), (Step("make", "a"),))
    found.clear()
    made.commit()
    assert found == ["directory"]
