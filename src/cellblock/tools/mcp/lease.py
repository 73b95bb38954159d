"""MCP servers that sessions of one host share, with a use count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from cellblock.tools.calling.content import CallTool
from cellblock.tools.mcp.params import ServerParams
from cellblock.tools.mcp.servers import Servers

ServerKey = tuple[str, str]
"""Identifies a server: the root that it is registered for, and its name there."""


class SharedServers:
    """The servers of one host. Each is stopped when the last session that used it has released it.

    Servers of different roots are different ones, whatever their names.
    """

    def __init__(
        self,
        lookup: Callable[[str, str], ServerParams],
        *,
        connect_timeout: float,
    ) -> None:
        """Set up; no server is started.

        Args:
            lookup: Returns the parameters of a server by its root and name, or raises.
            connect_timeout: Seconds in which a server must be ready.
        """
        self._lookup = lookup
        self._connect_timeout = connect_timeout
        self._by_root: dict[str, Servers] = {}
        self._users: dict[ServerKey, set[Lease]] = {}

    def use(self, key: ServerKey, lease: Lease) -> Servers:
        """Return a function that calls a server, and record its user."""
        root = key[0]
        if root not in self._by_root:
            self._by_root[root] = Servers(lambda name: self._lookup(root, name), connect_timeout=self._connect_timeout)
        self._users.setdefault(key, set()).add(lease)
        return self._by_root[root]

    async def give_up(self, key: ServerKey, lease: Lease) -> None:
        """Remove a user of a server, and stop the server after the last one."""
        users = self._users.get(key, set())
        users.discard(lease)
        if not users:
            self._users.pop(key, None)
            await self._by_root[key[0]].stop(key[1])


class Lease:
    """One session's lease: the servers that it may use, and those that it has used."""

    def __init__(self, shared: SharedServers, find: Callable[[str], str | None]) -> None:
        """Set up; no server is used yet.

        Args:
            shared: The servers.
            find: Returns the root of a server by the name that code has for it, or None if there is none.
        """
        self._shared = shared
        self._find = find
        self._used: set[ServerKey] = set()

    def caller(self, server: str) -> CallTool | None:
        """Return a function that calls a server's tools; None if the session may not name it. Nothing is started yet."""
        root = self._find(server)
        if root is None:
            return None
        self._used.add((root, server))
        return partial(self._shared.use((root, server), self).call, server)

    async def reset(self) -> None:
        """Stop the servers that only this session uses."""
        used, self._used = self._used, set()
        await asyncio.gather(*(self._shared.give_up(key, self) for key in used))

    async def close(self) -> None:
        """Release all servers."""
        await self.reset()
