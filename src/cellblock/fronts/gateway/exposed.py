"""Pages of servers in sessions of this process, at a port of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cellblock.common.addresses import listen
from cellblock.fronts.gateway.answers import send_problem
from cellblock.fronts.gateway.embedded import Serving
from cellblock.fronts.gateway.ports import VALID, PageHosts
from cellblock.fronts.problems import Problem

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from cellblock.fronts.gateway.forwarding import Connect


class Exposed:
    """Serves pages at a free port of this machine, once one is opened."""

    def __init__(self, connect: Connect) -> None:
        """Begin without a server.

        Args:
            connect: Connects to servers in the sessions.
        """
        self._hosts = PageHosts(_refuse, connect)
        self._starting = asyncio.Lock()
        self._serving: Serving | None = None
        self._port = 0

    async def open(self, session: str, port: int, *, bare: bool = False, seconds: float = VALID) -> str:
        """Return the URL of a page, which works once.

        Args:
            session: The session.
            port: The server's port.
            bare: As for `Page`.
            seconds: How long the URL works.
        """
        async with self._starting:
            if self._serving is None:
                sock = listen("127.0.0.1", 0, "the server of pages")
                self._port = sock.getsockname()[1]
                self._serving = Serving(self._hosts, sock, patience=1)
            await self._serving.begun()  # also if the caller that started it was cancelled
        return self._hosts.open(session, port, self._port, bare=bare, seconds=seconds)

    async def close(self) -> None:
        """Stop serving."""
        if self._serving is not None:
            await self._serving.close()


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] not in ("http", "websocket"):
        raise NotImplementedError  # then uvicorn does without
    await send_problem(scope, receive, send, Problem(421, "host_refused", "only pages that were opened are served here"))
