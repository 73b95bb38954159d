"""URLs of the pages of servers that code runs in sessions of the MCP server's own process."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from cellblock.common.extras import require_extra
from cellblock.errors import CellblockError, UnsupportedError
from cellblock.operations.programs import Ports

if TYPE_CHECKING:
    from cellblock.fronts.gateway.exposed import Exposed
    from cellblock.model.sessions import SessionRecord
    from cellblock.service.daemon.link import SessionLink

_MOST = 8
"""Maximum number of servers per session that are named: code can start thousands."""
_VALID = 3600.0
"""Seconds for which a URL works: the model passes it on when it has finished."""


class ServerPages:
    """Names each server of the code once. Its page is only served: no browser is opened."""

    def __init__(self, link: SessionLink) -> None:
        """Begin without a page.

        Args:
            link: The link to the sessions.
        """
        self._link = link
        self._exposed: Exposed | None = None
        self._named: dict[str, set[int]] = {}

    async def note(self, session: SessionRecord) -> list[str]:
        """Return a line for each new server of a session, with the URL of its page for the user."""
        if session.isolate != "native":
            return []
        try:
            ports = await self._link.call(Ports(session.kernel_id))
        except CellblockError:  # it is ending
            return []
        named = self._named.get(session.kernel_id, set())
        new = [port for port in ports if port not in named][: _MOST - len(named)]
        if new:
            self._named[session.kernel_id] = {*named, *new}
        return [f"[cellblock] A server listens at port {port}. {await self._how(session, port)}" for port in new]

    async def _how(self, session: SessionRecord, port: int) -> str:
        """Return how the user opens a page."""
        try:
            require_extra("serve", "pages of servers")
        except UnsupportedError as missing:
            return f"Its page cannot be opened: {missing}"
        # Imported here: FastAPI takes half a second to load, and few sessions have servers.
        from cellblock.fronts.gateway.exposed import Exposed
        from cellblock.fronts.gateway.forwarding import LinkedConnection

        if self._exposed is None:
            self._exposed = Exposed(functools.partial(LinkedConnection, self._link))
        url = await self._exposed.open(session.kernel_id, port, seconds=_VALID)
        return f"Give the user this URL, which works once, within an hour, in a browser on this machine: {url}"

    async def close(self) -> None:
        """Stop serving."""
        if self._exposed is not None:
            await self._exposed.close()
