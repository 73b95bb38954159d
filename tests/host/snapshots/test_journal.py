"""What a restore writes down before it changes anything, and who may."""

from __future__ import annotations

import pytest

from cellblock.errors import SnapshotError
from cellblock.host.snapshots import Snapshots

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
