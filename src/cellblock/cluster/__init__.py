"""Sessions on the nodes of a Ray cluster: `RayHosts`, and the locations of sessions (docs/cluster.md)."""

from __future__ import annotations

from cellblock.cluster.cluster_options import ClusterOptions
from cellblock.cluster.hosts import RayHosts
from cellblock.cluster.sync_hosts import SyncRayHosts

__all__ = ["ClusterOptions", "RayHosts", "SyncRayHosts"]
