"""The sessions of an MCP server's clients, by handle."""

from __future__ import annotations

import asyncio
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cellblock.errors import NotFoundError, SandboxError
from cellblock.host import Host
from cellblock.service.named.options import read_options
from cellblock.service.named.session import NamedSession
from cellblock.service.named.sessions import NamedSessions
from cellblock.tools.approvals.rules import Rules

if TYPE_CHECKING:
    from cellblock.fronts.mcp_server.options import ServerOptions

_HANDLE = re.compile(r"s-[0-9a-f]{32}")
_ONLY = "session"
_IDLE = 24 * 3600.0
"""Seconds after which an unused session ends."""


class Clients:
    """Sessions by their clients' handles.

    Over stdio there is one client, and its session works in the workspace. Over HTTP there are many. Each gets an unguessable
    handle, and a folder of its own, which is the only place that its code sees.

    Attributes:
        options: The server's options.
        rules: The rules that decide before people do, as loaded when the server started.
        sessions: The sessions.
    """

    def __init__(self, options: ServerOptions, host: Host | None = None) -> None:
        """Set up, without a session.

        Args:
            options: The server's options.
            host: Runs the sessions, and stays open; by default a new one.
        """
        self.options = options
        self.rules = Rules.load(options.rules) if options.rules is not None else Rules()
        self._given = host is not None
        self._host = host or Host(isolate="none", preload=options.preload)
        self.sessions = NamedSessions(self._host)
        self.sessions.always_asks = True  # also with another `approve`, the person at the client

    async def begin(self) -> None:
        """Warm up for the first session, and check the options now: errors at the start are seen, those of a cell may not be.

        Raises:
            InvalidInputError: No session could be made with these options.
        """
        options = read_options(self.options.session(self.options.workspace), self._host).session
        self._host.begin(options)
        if self.options.transport == "stdio":
            with suppress(SandboxError):  # a fault of the machine, which the first cell explains
                await self._host.session(options).close()

    async def session(self, handle: str) -> NamedSession:
        """Return the session of a handle; without one, over HTTP, a new session.

        Raises:
            NotFoundError: There is no such session, or no longer.
            LaunchError: Its kernel could not be started.
        """
        if self.options.transport == "stdio":
            return await self._only()
        if not handle:
            return await self._new()
        return self.known(handle)

    def known(self, handle: str) -> NamedSession:
        """Return the session of a handle.

        Raises:
            NotFoundError: There is no such session, or no longer.
        """
        try:
            return self.sessions.find(handle if _HANDLE.fullmatch(handle) else "")
        except NotFoundError:
            raise NotFoundError(
                "no session has this handle (a session ends when it is not used for a day): call again without 'session', and "
                "use the handle in the answer from then on"
            ) from None

    def folder(self, named: NamedSession) -> Path:
        """Return the working directory of a session."""
        return Path(named.options["working_dir"])

    async def _only(self) -> NamedSession:
        try:
            return self.sessions.find(_ONLY)
        except NotFoundError:
            return await self.sessions.create(_ONLY, self.options.session(self.options.workspace))

    async def _new(self) -> NamedSession:
        handle = f"s-{secrets.token_hex(16)}"
        folder = self.options.workspace / handle
        await asyncio.to_thread(folder.mkdir, mode=0o700)
        await asyncio.to_thread(self.options.tools.mkdir, exist_ok=True)
        return await self.sessions.create(handle, {**self.options.session(folder), "idle_timeout": _IDLE})

    async def close(self) -> None:
        """End all sessions."""
        await self.sessions.close()
        if not self._given:
            await self._host.close()
