"""A gateway in this process, for sessions of this process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import uvicorn

from cellblock.common.addresses import listen
from cellblock.fronts.gateway.app import make_app
from cellblock.fronts.gateway.gateway_options import GatewayOptions
from cellblock.fronts.gateway.serve import config
from cellblock.host import Host
from cellblock.host.closing import Closing
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.in_process import connect
from cellblock.service.daemon.link import DaemonLink
from cellblock.service.named.json_options import Options
from cellblock.service.named.named_sessions import NamedSessions

if TYPE_CHECKING:
    from starlette.types import ASGIApp


class EmbeddedGateway:
    """A gateway for named sessions of this process, with the same code as for the daemon's sessions.

    Attributes:
        sessions: The sessions, which end with the gateway.
        token: The token that clients need.
        port: The port.
    """

    def __init__(self, host: Host, options: GatewayOptions, fixed: Options | None = None) -> None:
        """Set up without sessions.

        Args:
            host: The host of the sessions, which stays open.
            options: The gateway's options. A token is created if they have none.
            fixed: The options of all sessions created by clients; by default those in `options`.
        """
        self.token = options.token or secrets.token_urlsafe(32)
        self.sessions = NamedSessions(host, fixed=fixed, notes_servers=False)
        self.port = 0
        self._options = replace(options, token=self.token, embedded=True)
        self._server = Server(self.sessions, default_timeout=None)
        self._serving: Serving | None = None
        self._closing = Closing()

    async def start(self, address: str, port: int) -> None:
        """Listen.

        Args:
            address: The address.
            port: The port; 0 for any free port.

        Raises:
            InvalidInputError: The address or the port cannot be used.
        """
        sock = listen(address, port, "the gateway")
        self.port = sock.getsockname()[1]
        app = make_app(self._options, link=DaemonLink(connect=functools.partial(connect, self._server)))
        self._serving = Serving(app, sock)
        await self._serving.begun()

    async def wait(self) -> None:
        """Wait until the gateway has ended."""
        if self._serving is not None:
            await self._serving.wait()

    async def close(self, timeout: float = 5) -> None:
        """End the gateway and its sessions. The operation is idempotent, and cancelling the caller does not stop it.

        Args:
            timeout: Seconds that running requests may still take.
        """
        if self._serving is not None:
            self._serving.patience = round(timeout)
        await self._closing.finish(self._close)

    async def _close(self) -> None:
        if self._serving is not None:
            await self._serving.close()
        await self.sessions.close()
        for client in [*self._server.clients]:
            client.abort()


class Serving:
    """An application that is served by a task of this loop.

    Attributes:
        patience: Seconds that running requests may still take at the end.
    """

    def __init__(self, app: ASGIApp, sock: socket.socket, patience: int = 5) -> None:
        """Start to serve.

        Args:
            app: The application.
            sock: The listener, which is owned from now on.
            patience: As for the attribute.
        """
        self.patience = patience
        self._uvicorn = _Uvicorn(config(app, None, None))
        self._task = asyncio.create_task(self._uvicorn.serve([sock]))

    async def begun(self) -> None:
        """Wait until requests are accepted."""
        began = asyncio.create_task(self._uvicorn.began.wait())
        await asyncio.wait([self._task, began], return_when=asyncio.FIRST_COMPLETED)
        began.cancel()

    async def wait(self) -> None:
        """Wait for the end."""
        await asyncio.wait([self._task])

    async def close(self) -> None:
        """Stop, and wait for the end."""
        self._uvicorn.config.timeout_graceful_shutdown = self.patience
        self._uvicorn.should_exit = True
        await self.wait()


class _Uvicorn(uvicorn.Server):
    """A uvicorn server that leaves the signals of this process alone.

    Attributes:
        began: Set when the server accepts requests.
    """

    def __init__(self, settings: uvicorn.Config) -> None:
        super().__init__(settings)
        self.began = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.began.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
