"""A host's MCP servers: started on first use, shared by its sessions, stopped with it.

The SDK takes long to import, so it is loaded with the first server: see `connection`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from cellblock.common import config
from cellblock.common.extras import require_extra
from cellblock.errors import CellblockError, StateError
from cellblock.tools.calling.content import OnLog, OnProgress, ToolOutcome, ToolSpec
from cellblock.tools.mcp.changes import Check
from cellblock.tools.mcp.params import ServerParams

if TYPE_CHECKING:
    from cellblock.tools.approvals.elicitation import Person
    from cellblock.tools.mcp.connection import Connection


OnTools = Callable[[str, list[ToolSpec], str], Awaitable[object]]
"""Takes the name of a server, its present tools, and what it says about its use."""

_LOG = logging.getLogger("cellblock.tools")


class Servers:
    """MCP servers by name. Each is connected on first use; calls share the connection and run concurrently.

    The next call re-establishes a lost connection. A context manager, which closes at its end. Programs that run as servers
    end with this process, even after ``kill -9``, together with all processes that they started.

    Args:
        lookup: Returns the parameters of a server by its name, or raises; called for each connection.
        connect_timeout: Limit in seconds for the start of a server.
        environment: Variables for ``${NAME}`` in parameters, and for ``PATH`` and similar variables of programs; by default
            `config.server_environment`, read for each connection.
        on_tools: Called after a call during which the server has announced other tools.
    """

    def __init__(
        self,
        lookup: Callable[[str], ServerParams],
        *,
        connect_timeout: float = 30.0,
        environment: Mapping[str, str] | None = None,
        on_tools: OnTools | None = None,
    ) -> None:
        self._lookup = lookup
        self._connect_timeout = connect_timeout
        self._environment = environment
        self._on_tools = on_tools
        self._connections: dict[str, Connection] = {}
        self._closed = False

    async def __aenter__(self) -> Servers:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def call(
        self,
        server: str,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        check: Check | None = None,
        person: Person | None = None,
    ) -> ToolOutcome:
        """Call a tool.

        Args:
            server: The server's name.
            tool: The tool's name.
            arguments: The arguments.
            timeout: Limit in seconds, after which the call is cancelled, on the server too; the server's start does not
                count. None: no limit.
            on_progress: Called with the progress, the total and a message (both may be None) at each report of the server.
            on_log: Called with level and text of the server's log messages meanwhile. The protocol does not name the call
                of a message, so it goes to all calls of that server.
            check: Called with the present facts about the tool before the call. If it raises, the tool is not called.
            person: The person whom the server can ask meanwhile, or None. Their time counts towards `timeout`.

        Returns:
            The tool's outcome, which can be a failure.

        Raises:
            McpServerError: The server could not be started or reached, refused or lost the call, did not answer in time, or
                its answer was too large or invalid. Structured results are not validated against the server's schema: see
                `dialogue`.
            InvalidInputError: The arguments cannot be sent as JSON, or the parameters refer to a variable that is not set.
            StateError: This object is closed.
        """
        connection = self._connections.get(server)
        if connection is None or not connection.usable:
            connection = await self._connect(server)
        try:
            return await connection.call(
                tool, arguments, timeout=timeout, on_progress=on_progress, on_log=on_log, check=check, person=person
            )
        finally:
            if self._on_tools is not None and connection.has_announced():
                await self._announce(self._on_tools, server, connection)

    async def _announce(self, on_tools: OnTools, server: str, connection: Connection) -> None:
        try:
            await on_tools(server, await connection.list_tools(), connection.instructions)
        except (CellblockError, OSError) as error:
            _LOG.warning("the new tools of MCP server %r cannot be imported: %s", server, error)

    def runs(self, server: str) -> bool:
        """Return whether a server runs, as far as known."""
        connection = self._connections.get(server)
        return connection is not None and connection.usable

    async def instructions(self, server: str) -> str:
        """Return what a server says about its use; empty if it says nothing.

        Raises:
            McpServerError: The server could not be started or reached.
            StateError: This object is closed.
        """
        return (await self._connect(server)).instructions

    async def list_tools(self, server: str) -> list[ToolSpec]:
        """Return the present tools of a server.

        Raises:
            McpServerError: The server could not be started or reached, or its answer was invalid.
            StateError: This object is closed.
            UnsupportedError: The extra mcp is not installed.
        """
        return await (await self._connect(server)).list_tools()

    def needs_login(self, server: str) -> bool:
        """Return whether a person must log in at a server, as far as its last connection knows."""
        return (connection := self._connections.get(server)) is not None and connection.needs_login

    async def stop(self, server: str) -> None:
        """Stop one server, if it runs."""
        if (connection := self._connections.get(server)) is not None:
            await connection.close()

    async def reset(self) -> None:
        """Stop every server, and wait until they have ended. Calls in flight fail. The next call starts its server again."""
        await asyncio.gather(*(connection.close() for connection in [*self._connections.values()]))

    async def close(self) -> None:
        """Stop every server permanently."""
        self._closed = True
        await self.reset()

    async def _connect(self, server: str) -> Connection:
        while (connection := self._connections.get(server)) is not None and connection.ended:
            # Two processes of one server could conflict over their files or port.
            await connection.closed()
            if self._connections.get(server) is connection:
                del self._connections[server]
        if self._closed:
            raise StateError(f"MCP server {server!r} cannot be used: the tools of this host have been closed")
        if connection is None:
            require_extra("mcp", "tools")
            from cellblock.tools.mcp.connection import Connection

            environment = config.server_environment() if self._environment is None else self._environment
            connection = Connection(server, self._lookup(server), environment, self._connect_timeout)
            self._connections[server] = connection
        await connection.opened()
        return connection
