"""The files of checkpoints: keeps, compares and restores the content of a workspace."""

from cellblock.model.checkpoints import Changes, FileChange, FileChanges
from cellblock.snapshots.archive import Missing, pack
from cellblock.snapshots.snapshots import Snapshots
from cellblock.snapshots.store import Store
from cellblock.snapshots.tree import Snapshot, SnapshotLimits

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
