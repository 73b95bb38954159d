"""Serves an application on existing sockets, with a limit on connections."""

from __future__ import annotations

import asyncio
import functools
import resource
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from cellblock.errors import StateError
from cellblock.tools.serving.http import App, Connection, PortState

if TYPE_CHECKING:
    from cellblock.tools.serving.websocket import WebSocket

    OnWebSocket = Callable[[WebSocket], Awaitable[None]]

MAX_CONNECTIONS = 256
"""Maximum connections of one port; further ones are closed at once. `pool` makes 64 for each event loop of a program."""

MAX_OF_ALL = 1024
"""Maximum connections of all ports of this process; fewer if its limit on descriptors is low."""

RESERVED = 16
"""Connections that are reserved for each port, however many the others have."""

_STOP = 2.0


class HttpServer:
    """A server of an application on given sockets."""

    def __init__(self, app: App, sockets: Sequence[socket.socket], websocket: OnWebSocket | None = None) -> None:
        """Set up.

        Args:
            app: The application.
            sockets: Bound sockets; closed by `stop`.
            websocket: Serves WebSockets; without it, requests for them go to `app`.
        """
        self._sockets = list(sockets)
        self._port = PortState(app, lambda: _full(self._port))
        if websocket is not None:
            from cellblock.tools.serving.websocket import WebSocket  # most ports have none

            self._port.websocket = functools.partial(WebSocket, self._port, websocket)
        self._servers: list[asyncio.Server] = []
        self._stopped: asyncio.Event | None = None

    async def start(self) -> None:
        """Start to accept connections.

        Raises:
            StateError: The server was already started.
        """
        if self._stopped is not None:
            raise StateError("The server is already running.")
        self._stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        connection = functools.partial(Connection, self._port)
        for listener in self._sockets:
            self._servers.append(await loop.create_server(connection, sock=listener, backlog=512))
        _ports.append(self._port)

    async def stop(self) -> None:
        """Close the sockets and all connections; cancel unfinished requests."""
        if self._stopped is None or self._stopped.is_set():
            return
        self._port.full = lambda: True
        for listener in self._sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
        # A server closed between accepting a connection and starting its protocol forgets the open connection.
        await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        for connection in [*self._port.connections]:
            connection.shutdown()
        if self._port.tasks:
            await asyncio.wait([*self._port.tasks], timeout=_STOP)
        for task in (cut_off := [*self._port.tasks]):
            task.cancel()
        await asyncio.gather(*cut_off, return_exceptions=True)
        while self._port.connections:
            for connection in [*self._port.connections]:
                connection.transport.abort()
            await asyncio.sleep(0)  # to let their futures resolve
        _ports[:] = [port for port in _ports if port is not self._port]
        for listener in self._sockets:
            listener.close()
        self._stopped.set()

    async def join(self) -> None:
        """Wait until the server has stopped."""
        if self._stopped is not None:
            await self._stopped.wait()


_ports: list[PortState] = []
"""The ports that are served."""


def _full(port: PortState) -> bool:
    """Return whether a port refuses further connections."""
    if len(port.connections) < RESERVED:
        return False
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_OF_ALL if soft == resource.RLIM_INFINITY else min(MAX_OF_ALL, soft // 4)
    return len(port.connections) >= MAX_CONNECTIONS or sum(len(one.connections) for one in _ports) >= most
