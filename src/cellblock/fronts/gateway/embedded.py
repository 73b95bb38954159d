"""A gateway in this process, for sessions of this process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import socket
from collections.abc import Iterator
from dataclasses import replace

import uvicorn

from cellblock.common.addresses import listen
from cellblock.fronts.gateway.app import make_app
from cellblock.fronts.gateway.options import GatewayOptions
from cellblock.fronts.gateway.serve import config
from cellblock.host import Host
from cellblock.host.closing import Closing
from cellblock.service.daemon.in_process import connect
from cellblock.service.daemon.link import DaemonLink
from cellblock.service.daemon.server import Server
from cellblock.service.named.options import Options
from cellblock.service.named.sessions import NamedSessions


class EmbeddedGateway:
    """Serves named sessions of this process at a port, by the same code that serves those of the daemon.

    Attributes:
        sessions: The sessions, which end with it.
        token: The token that its clients need.
        port: The port.
    """

    def __init__(self, host: Host, options: GatewayOptions, fixed: Options | None = None) -> None:
        """Begin without sessions.

        Args:
            host: Where they run; it stays open.
            options: How the gateway is set up. Its token is made here if there is none.
            fixed: The options of all sessions that clients make; by default those that `options` has.
        """
        self.token = options.token or secrets.token_urlsafe(32)
        self.sessions = NamedSessions(host, fixed=fixed)
        self.port = 0
        self._options = replace(options, token=self.token, embedded=True)
        self._server = Server(self.sessions, default_timeout=None)
        self._uvicorn: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None
        self._closing = Closing()

    async def start(self, address: str, port: int) -> None:
        """Listen.

        Args:
            address: The address.
            port: The port; 0 for any that is free.

        Raises:
            InvalidInputError: It cannot be used.
        """
        sock = listen(address, port, "the gateway")
        self.port = sock.getsockname()[1]
        app = make_app(self._options, link=DaemonLink(connect=functools.partial(connect, self._server)))
        self._uvicorn = _Uvicorn(config(app, None, None))
        self._serving = asyncio.create_task(self._uvicorn.serve([sock]))
        began = asyncio.create_task(self._uvicorn.began.wait())
        await asyncio.wait([self._serving, began], return_when=asyncio.FIRST_COMPLETED)
        began.cancel()

    async def wait(self) -> None:
        """Wait until it has ended."""
        if self._serving is not None:
            await asyncio.wait([self._serving])

    async def close(self, timeout: float = 5) -> None:
        """End it and its sessions. Closing twice is fine, and cancelling the caller does not stop it.

        Args:
            timeout: Seconds that requests may still take.
        """
        if self._uvicorn is not None:
            self._uvicorn.config.timeout_graceful_shutdown = round(timeout)
        await self._closing.finish(self._close)

    async def _close(self) -> None:
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True
        await self.wait()
        await self.sessions.close()
        for client in [*self._server.clients]:
            client.abort()


class _Uvicorn(uvicorn.Server):
    """Leaves the signals of this process alone.

    Attributes:
        began: Set when it takes requests.
    """

    def __init__(self, settings: uvicorn.Config) -> None:
        super().__init__(settings)
        self.began = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        await super().startup(sockets)
        self.began.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn."""
        yield
