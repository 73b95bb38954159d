"""Named sessions inside this process, without a daemon. They end with the process."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import socket
from typing import TYPE_CHECKING, Any

from cellblock.common import loop_thread
from cellblock.common.per_process import PerProcess

if TYPE_CHECKING:
    from cellblock.service.daemon.daemon_state import Server


async def connect(server: Server) -> socket.socket:
    """Connect to sessions of this event loop, as to a daemon."""
    from cellblock.service.daemon.client_connection import Client

    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(functools.partial(Client, server), theirs)
    return ours


class InProcess:
    """Named sessions in a thread of this process, with the same connection as a daemon's."""

    def __init__(self) -> None:
        """Begin without a session."""
        self._process = os.getpid()
        self._thread = loop_thread.shared()
        self._server, self._host = self._thread.run(_serve())

    @property
    def usable(self) -> bool:
        """Whether the sessions belong to this process, and have not ended."""
        return self._process == os.getpid() and self._thread.usable

    def connect(self) -> socket.socket:
        """Return a connection to it."""
        return self._thread.run(connect(self._server))

    def close(self) -> None:
        """End all sessions. The operation is idempotent."""
        if self.usable:
            self._thread.run(self._close())

    async def _close(self) -> None:
        await self._server.sessions.close()
        await self._host.close()
        for client in [*self._server.clients]:
            client.abort()


async def _serve() -> tuple[Any, Any]:
    from cellblock.host import Host
    from cellblock.service.daemon.daemon_state import Server
    from cellblock.service.named.named_sessions import NamedSessions

    host = Host(isolate="none")  # each session sets its own isolation
    return Server(NamedSessions(host)), host


def _make_shared() -> InProcess:
    made = InProcess()
    atexit.register(made.close)  # before the loop ends, which was registered earlier
    return made


shared = PerProcess(_make_shared)
"""Returns this process's own sessions."""
