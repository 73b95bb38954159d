"""The location of an MCP server's sessions: its own process, which ends them, the daemon, or the nodes of a cluster."""

from __future__ import annotations

import asyncio
import functools
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from cellblock.errors import SandboxError, StateError
from cellblock.fronts.mcp_server.server_pages import ServerPages

if TYPE_CHECKING:
    from cellblock.fronts.mcp_server.server_options import ServerOptions
    from cellblock.host import Host
    from cellblock.model.sessions import SessionRecord
    from cellblock.service.daemon.link import SessionLink


class Place(Protocol):
    """A location of sessions."""

    @property
    def link(self) -> SessionLink:
        """The link to the sessions."""

    async def begin(self) -> None:
        """Prepare for the first session."""

    async def note_servers(self, session: SessionRecord) -> list[str]:
        """Return lines about new servers of the code, unless its output has them."""

    async def close(self) -> None:
        pass


class Here:
    """Sessions of this process."""

    def __init__(self, options: ServerOptions, host: Host | None = None) -> None:
        """Set up without a session.

        Args:
            options: The server's options.
            host: The host of the sessions, which stays open; by default a new one.
        """
        from cellblock.host import Host as NewHost
        from cellblock.service.daemon.daemon_state import Server
        from cellblock.service.daemon.in_process import connect
        from cellblock.service.daemon.link import DaemonLink
        from cellblock.service.named.named_sessions import NamedSessions

        self._options = options
        self._given = host is not None
        self._host = host or NewHost(isolate="none")
        self._server = Server(NamedSessions(self._host, notes_servers=False))
        self.link = DaemonLink(connect=functools.partial(connect, self._server))
        self._pages = ServerPages(self.link)

    async def begin(self) -> None:
        """Warm up, and check the options now: errors at the start are seen, errors of a cell may not be.

        Raises:
            InvalidInputError: No session can be created with these options.
        """
        from cellblock.service.named.json_options import read_options

        options = read_options(self._options.session(self._options.workspace), self._host).session
        self._host.begin(options)
        if self._options.transport == "stdio":
            with suppress(SandboxError):  # a fault of the machine, which the first cell explains
                await self._host.session(options).close()

    async def note_servers(self, session: SessionRecord) -> list[str]:
        return await self._pages.note(session)

    async def close(self) -> None:
        """End all sessions."""
        await self._pages.close()
        await self._server.sessions.close()
        if not self._given:
            await self._host.close()
        await self.link.close()
        for client in [*self._server.clients]:
            client.abort()


class Elsewhere:
    """Sessions in this user's daemon, or on the nodes of the Ray cluster that the settings name."""

    def __init__(self) -> None:
        self._link: SessionLink | None = None

    @property
    def link(self) -> SessionLink:
        """The link to the sessions.

        Raises:
            StateError: `begin` was not called.
        """
        if self._link is None:
            raise StateError("the MCP server has not connected to its sessions")
        return self._link

    async def begin(self) -> None:
        """Connect to the sessions.

        Raises:
            DaemonError: The cluster cannot be reached.
        """
        from cellblock.fronts.where import open_link

        self._link = await asyncio.to_thread(open_link)

    async def note_servers(self, session: SessionRecord) -> list[str]:
        """Return nothing: the output names the servers."""
        return []

    async def close(self) -> None:
        """Close the connections. Sessions that were not ended continue."""
        if self._link is not None:
            await self._link.close()
