"""An ASGI application on sockets that are there already: uvicorn, without what it does to a process that is not its own."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cellblock.errors import StateError
from cellblock.tools.app import App

if TYPE_CHECKING:
    from uvicorn._types import ASGIApplication

MAX_CONNECTIONS = 256
"""Connections of one port at once; more are closed at the door. `pool` makes 64 for each event loop of a program."""

MAX_OF_ALL = 1024
"""Connections of all ports of this process; fewer where it may have few descriptors."""

RESERVED = 16
"""Connections that a port may have in any case: what others hold open is no reason why it has none."""

PATIENCE = 30.0
"""Seconds in which a request must have come, from its first byte, or the connection, to its last."""

IDLE = 75
"""Seconds that an idle connection is kept; longer than `runner` keeps its own, so that it never writes to a closing one."""

_MAX_ANSWER = 64 * 1024
_MAX_HEAD = 64 * 1024
_STOP = 2


class Listening:
    """Serves an application until it is stopped."""

    def __init__(self, app: App, sockets: Sequence[socket.socket]) -> None:
        """Set up.

        Args:
            app: The application.
            sockets: Bound sockets; closed by `stop`.
        """
        self._sockets = list(sockets)
        config = uvicorn.Config(
            cast("ASGIApplication", app),
            http=_Bounded,
            ws="websockets-sansio",
            ws_max_size=_MAX_ANSWER,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE,
            timeout_graceful_shutdown=_STOP,
        )
        self._server = _Server(config)
        self._connections = self._server.server_state.connections
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept connections from now on.

        Raises:
            StateError: It does already.
        """
        if self._task is not None:
            raise StateError("The server is already running.")
        self._task = asyncio.get_running_loop().create_task(self._server.serve(self._sockets))
        _ports.append(self._connections)
        self._task.add_done_callback(lambda _task: _leave(self._connections))
        while not self._server.started:
            if self._task.done():
                await self._task
                raise StateError("The server ended before it started.")
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """Close the sockets and all connections; requests that do not end by themselves are cancelled."""
        self._server.should_exit = True
        await self.join()
        for listener in self._sockets:
            listener.close()

    async def join(self) -> None:
        """Wait until it has stopped."""
        if self._task is not None:
            await asyncio.shield(self._task)


_ports: list[set[Any]] = []
"""The connections of each port."""


def _leave(connections: set[Any]) -> None:
    _ports[:] = [port for port in _ports if port is not connections]  # sets are equal where they have the same elements


def _full(connections: set[Any]) -> bool:
    """Say whether a port may have no further connection."""
    if len(connections) < RESERVED:
        return False
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_OF_ALL if soft == resource.RLIM_INFINITY else min(MAX_OF_ALL, soft // 4)
    return len(connections) >= MAX_CONNECTIONS or sum(map(len, _ports)) >= most


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the program."""
        yield


class _Bounded(HttpToolsProtocol):
    """Parses with httptools, which takes a quarter of the time of h11, and puts bounds on what it would collect."""

    _fed = 0
    _in_head = True
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own annotation
        """Accept a connection, if there are not too many."""
        if _full(self.connections):
            transport.abort()
            return
        # asyncio does this for sockets of protocol IPPROTO_TCP, not 0. Without it an answer, which is written in two parts,
        # takes the 40 ms of a delayed acknowledgement.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after a connection that was accepted."""
        self._end()
        if self in self.connections:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, and end the connection where headers have no end."""
        self._fed += len(data)
        super().data_received(data)
        if self._in_head and self._fed > _MAX_HEAD:
            self.transport.abort()

    def handle_websocket_upgrade(self) -> None:
        """Leave the connection to a protocol that has limits of its own."""
        self._end()
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        """Wait for a request, and not for ever."""
        self._begin()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. There are no chunks: a length is a bound, and trailers would have none."""
        if name.lower() == b"transfer-encoding":
            raise ValueError("bodies come with their length")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop counting: a body has its length, and the application its limit."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Count again, for the next request."""
        self._end()
        super().on_message_complete()
        self._in_head, self._fed = True, 0

    def _begin(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(PATIENCE, self.transport.abort)

    def _end(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
