"""Opens links to the sessions of a Ray cluster. The modules that it loads import Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellblock.cluster import local
from cellblock.common.extras import require_extra

if TYPE_CHECKING:
    from cellblock.cluster.cluster_options import ClusterOptions
    from cellblock.cluster.director_calls import DirectorCalls
    from cellblock.cluster.link import ClusterLink


def open_director(address: str, options: ClusterOptions | None = None) -> DirectorCalls:
    """Connect to a Ray cluster; return the calls of its director.

    Args:
        address: The cluster's address.
        options: The options of a new director; None: it has to exist.

    Raises:
        DaemonError: The cluster or its director does not exist.
        UnsupportedError: Ray is not installed, or the cluster has another version of cellblock.
    """
    local.authenticate(address)
    require_extra("ray", "sessions on a Ray cluster")
    from cellblock.cluster.director_calls import connect_ray, start_director

    connect_ray(address)
    return start_director(options)


def open_link(address: str, patience: float, options: ClusterOptions | None = None) -> ClusterLink:
    """Connect to a Ray cluster; return the link to its sessions.

    Raises:
        CellblockError: As for `open_director`.
    """
    director = open_director(address, options)
    from cellblock.cluster.link import ClusterLink

    return ClusterLink(director, patience)
