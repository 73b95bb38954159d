"""File snapshots: take, compare and restore the content of a workspace."""

from cellblock.host.snapshots.archive import Missing, pack
from cellblock.host.snapshots.snapshots import Snapshots
from cellblock.host.snapshots.store import Store
from cellblock.host.snapshots.tree import Snapshot, SnapshotLimits
from cellblock.model.checkpoints import Changes, FileChange, FileChanges

__all__ = [
    "Changes",
    "FileChange",
    "FileChanges",
    "Missing",
    "Snapshot",
    "SnapshotLimits",
    "Snapshots",
    "Store",
    "pack",
]
