"""Ends the daemon on request, when it is unused, or when its directory changes owner; returns free memory."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from cellblock.errors import CellblockError
from cellblock.service.daemon.handover import ASK_RARELY
from cellblock.service.daemon.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellblock.service.daemon.daemon_state import Server
    from cellblock.service.daemon.place import Place

_log = logging.getLogger("cellblock.daemon")

_LOOK = 1.0
"""Seconds between two looks."""

_MOVED = 10.0
"""Seconds for which the directory may be missing: a user may restore it."""


async def until_shutdown(server: Server, place: Place, lock: int, idle: float | None, listen: Callable[[], object]) -> None:
    """Return when the daemon has to end.

    Args:
        server: The state shared by all clients.
        place: The daemon's directory.
        lock: The descriptor of the daemon's lock.
        idle: Seconds without kernels and clients after which the daemon ends; None: never.
        listen: Called to listen again after the socket file was removed, for example by a cleaner.
    """
    used = seen = time.monotonic()
    memory = Memory()
    look = _LOOK if idle is None else min(_LOOK, idle / 4)
    while not server.asked_to_end.is_set():
        try:
            async with asyncio.timeout(look):
                await server.asked_to_end.wait()
        except TimeoutError:
            pass
        if server.custodian is not None and server.custodian.gone:
            _log.error("the custodian has ended, and all kernels with it: the daemon ends, and the next one starts another")
            return
        owner = place.owner(lock)
        if owner != "gone":
            seen = time.monotonic()
        if owner == "another's" or time.monotonic() - seen > _MOVED:
            _log.error("the directory %s was removed or replaced: the daemon ends", place.directory)
            return
        if owner == "ours" and not place.socket.exists():
            try:
                listen()
            except (OSError, CellblockError) as error:
                _log.error("the socket %s was removed, and cannot be created again: %s", place.socket, error)
            else:
                _log.warning("the socket %s was removed, and is created again", place.socket)
        await server.hand_over(ASK_RARELY)
        memory.look(len(server.sessions), busy=server.sessions.busy)
        now = time.monotonic()
        if server.clients or server.sessions.kernels:
            used = now
        elif idle is not None and now - used > idle:
            _log.info("the daemon ends: it was not used for %g s", idle)
            return
