"""The daemon's part without a daemon: named sessions in this process, which end with it."""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

from cellblock.common import loop_thread

if TYPE_CHECKING:
    from cellblock.service.daemon.server import Server


async def connect(server: Server) -> socket.socket:
    """Return a connection to sessions of this event loop, as to those of a daemon."""
    from cellblock.service.daemon.client import Client

    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(lambda: Client(server), theirs)
    return ours


class InProcess:
    """Named sessions in a thread of this process, behind the same connection as those of the daemon."""

    def __init__(self) -> None:
        """Begin without a session."""
        self._process = os.getpid()
        self._thread = loop_thread.shared()
        self._server, self._host = self._thread.run(_serve())

    @property
    def usable(self) -> bool:
        """Whether it belongs to this process, and has not ended."""
        return self._process == os.getpid() and self._thread.usable

    def connect(self) -> socket.socket:
        """Return a connection to it."""
        return self._thread.run(connect(self._server))

    def close(self) -> None:
        """End all sessions. Closing twice is fine."""
        if self.usable:
            self._thread.run(self._close())

    async def _close(self) -> None:
        await self._server.sessions.close()
        await self._host.close()
        for client in [*self._server.clients]:
            client.abort()


async def _serve() -> tuple[Any, Any]:
    from cellblock.host import Host
    from cellblock.service.daemon.server import Server
    from cellblock.service.named.sessions import NamedSessions

    host = Host(isolate="none")  # each session says how it is to be isolated
    return Server(NamedSessions(host)), host


_lock = threading.Lock()
_shared: InProcess | None = None


def shared() -> InProcess:
    """Return this process's own sessions."""
    global _shared
    with _lock:
        if _shared is None or not _shared.usable:
            _shared = InProcess()
            atexit.register(_shared.close)  # before the loop ends, which was registered earlier
        return _shared


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)
