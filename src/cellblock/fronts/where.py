"""The location of named sessions: the daemon of this machine, or a Ray cluster if the settings name one (`ray_address`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellblock.service import settings
from cellblock.service.daemon.place import Place

if TYPE_CHECKING:
    from cellblock.cluster.cluster_connection import ClusterConnection
    from cellblock.service.daemon.daemon_connection import SessionConnection
    from cellblock.service.daemon.link import SessionLink


def open_connection(chosen: settings.Settings | None = None) -> SessionConnection:
    """Connect to the sessions, and start the daemon if needed.

    Raises:
        DaemonError: The daemon cannot be started or reached, or the cluster cannot be reached.
    """
    if address := (chosen or settings.current()).ray_address:
        return _in_cluster(address)
    from cellblock.service.daemon import starting

    return starting.open_connection(Place())


def open_if_running() -> SessionConnection | None:
    """Connect to the sessions; return None if no daemon runs and no cluster is named.

    Raises:
        DaemonError: The daemon or the cluster cannot be reached.
    """
    if address := settings.current().ray_address:
        return _in_cluster(address)
    from cellblock.service.daemon import daemon_connection

    return daemon_connection.open_if_running(Place())


def _in_cluster(address: str) -> ClusterConnection:
    from cellblock.cluster.cluster_connection import shared_connection

    return shared_connection(address, settings.current().ray_patience)


def open_link(place: Place | None = None) -> SessionLink:
    """Return a link to the sessions.

    Args:
        place: The daemon's directory, if the sessions are in a daemon; the user's own by default.

    Raises:
        DaemonError: The cluster cannot be reached.
    """
    wanted = settings.current()
    if not wanted.ray_address:
        from cellblock.service.daemon.link import DaemonLink

        return DaemonLink(place)
    from cellblock.cluster.link import ClusterLink
    from cellblock.cluster.opening import open_director

    return ClusterLink(open_director(wanted.ray_address), wanted.ray_patience)
