"""File snapshots: take, compare and restore the content of a workspace."""

from cellblock.host.snapshots.archive import Missing, pack
from cellblock.host.snapshots.snapshots import Snapshots
from cellblock.host.snapshots.store import Store
from cellblock.host.snapshots.tree import Snapshot, SnapshotLimits

__all__ = ["Missing", "Snapshot", "SnapshotLimits", "Snapshots", "Store", "pack"]
