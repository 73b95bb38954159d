"""Leases of MCP servers that the sessions of one host share, with a use count."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from cellblock.errors import McpServerError
from cellblock.tools.calling.content import CallTool, ToolOutcome, ToolSpec
from cellblock.tools.mcp.params import ServerParams, digest_of
from cellblock.tools.mcp.servers import Servers

ServerKey = tuple[str, str, str]
"""Identifies a server: the root that it is registered for, its name there, and the digest of its parameters."""


OnServerTools = Callable[[str, str, list[ToolSpec], str], Awaitable[object]]


class SharedServers:
    """The servers of one host. Each is stopped when the last session that used it has released it.

    Servers with different roots are different, even if they have the same name.
    """

    def __init__(
        self,
        lookup: Callable[[str, str], ServerParams],
        *,
        connect_timeout: float,
        on_tools: OnServerTools | None = None,
    ) -> None:
        """Set up without starting a server.

        Args:
            lookup: Returns the parameters of a server by its root and name, or raises.
            connect_timeout: Limit in seconds for the start of a server.
            on_tools: Called with the root of a server, and as `Servers` calls its `on_tools`.
        """
        self._lookup = lookup
        self._on_tools = on_tools
        self._connect_timeout = connect_timeout
        self._servers: dict[ServerKey, Servers] = {}
        self._users: dict[ServerKey, set[Lease]] = {}

    def use(self, key: ServerKey, lease: Lease) -> Servers:
        """Return a function that calls a server, and record its user."""
        if key not in self._servers:
            self._servers[key] = Servers(
                lambda name: self._params(key),
                connect_timeout=self._connect_timeout,
                on_tools=None if self._on_tools is None else partial(self._on_tools, key[0]),
            )
        self._users.setdefault(key, set()).add(lease)
        return self._servers[key]

    def running(self, key: ServerKey) -> Servers | None:
        """Return the servers with a running server; None if it does not run."""
        servers = self._servers.get(key)
        return servers if servers is not None and servers.runs(key[1]) else None

    def _params(self, key: ServerKey) -> ServerParams:
        root, name, digest = key
        params = self._lookup(root, name)
        if digest and digest_of(params) != digest:
            raise McpServerError(f"MCP server {name!r} was registered again after this call was decided: call it again")
        return params

    async def give_up(self, key: ServerKey, lease: Lease) -> None:
        """Remove a user of a server, and stop the server after the last one."""
        users = self._users.get(key, set())
        users.discard(lease)
        if not users:
            self._users.pop(key, None)
            await self._servers[key].stop(key[1])


class Lease:
    """One session's lease: the servers that it may use, and those that it has used."""

    def __init__(
        self, shared: SharedServers, find: Callable[[str], str | None], digest: Callable[[str, str], str] = lambda *_: ""
    ) -> None:
        """Set up without using a server.

        Args:
            shared: The servers.
            find: Returns the root of a server by its name in code, or None if missing.
            digest: Returns the digest of a server's parameters by its name and root.
        """
        self._shared = shared
        self._find = find
        self._digest = digest
        self._used: set[ServerKey] = set()

    def caller(self, server: str) -> CallTool | None:
        """Return a function that calls a server's tools; None if the session may not name it. Nothing is started yet."""
        root = self._find(server)
        if root is None:
            return None
        key = (root, server, self._digest(server, root))
        before = [other for other in self._used if other[:2] == key[:2] and other != key]
        self._used.add(key)
        call = partial(self._shared.use(key, self).call, server)
        return partial(self._replacing, before, call) if before else call

    def running(self, server: str, params: ServerParams) -> Servers | None:
        """Return the servers with a server that runs with these parameters; None if it does not run."""
        return self._shared.running((self._find(server) or "", server, digest_of(params)))

    async def _replacing(self, before: list[ServerKey], call: CallTool, *arguments: Any, **options: Any) -> ToolOutcome:
        """Call a server that was registered again, after the processes of its former parameters have ended."""
        for key in before:
            self._used.discard(key)
            await self._shared.give_up(key, self)
        return await call(*arguments, **options)

    async def reset(self) -> None:
        """Stop the servers that only this session uses."""
        used, self._used = self._used, set()
        await asyncio.gather(*(self._shared.give_up(key, self) for key in used))

    async def close(self) -> None:
        """Release all servers."""
        await self.reset()
