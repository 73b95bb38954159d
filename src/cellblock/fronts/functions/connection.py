"""Each thread's connection to the sessions of the daemon or of this process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from cellblock.common import config
from cellblock.errors import DaemonError, OutcomeUnknownError
from cellblock.fronts import where
from cellblock.service import settings

if TYPE_CHECKING:
    from cellblock.operations.base import AnswerT, Request
    from cellblock.service.daemon.daemon_connection import SessionConnection

local = threading.local()
"""Has each thread's connections, by the daemon's directory or the cluster's address; None for our own sessions."""


def call(request: Request[AnswerT], body: bytes = b"") -> AnswerT:
    """Send a request to the daemon. If the connection is lost, send it to the next daemon.

    Raises:
        OutcomeUnknownError: The connection was lost after the request was sent, and the request must not be repeated.
    """
    first = connection()
    try:
        return first.call(request, body)
    except DaemonError as error:
        if first.usable or isinstance(error, OutcomeUnknownError):
            raise
    return connection().call(request, body)


def connection(chosen: settings.Settings | None = None) -> SessionConnection:
    """Return this thread's connection to the sessions of the daemon (started if needed), a cluster, or this process."""
    wanted = chosen or settings.current()
    memory = wanted.store_backend == "memory"
    place = None if memory else wanted.ray_address or config.state_directory()
    known: dict[Path | str | None, SessionConnection] = local.__dict__.setdefault("connections", {})
    found = known.get(place)
    if found is None or not found.usable:
        found = known[place] = _in_memory() if memory else where.open_connection(wanted)
    return found


def _in_memory() -> SessionConnection:
    from cellblock.common.version import __version__
    from cellblock.service.daemon import in_process
    from cellblock.service.daemon.daemon_connection import Connection

    return Connection(in_process.shared().connect(), __version__)
