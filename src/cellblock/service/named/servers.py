"""Tells the reader of a named session's output about the servers of its code, so that the user can open their pages."""

from __future__ import annotations

import asyncio
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING

from cellblock.errors import CellblockError
from cellblock.model.sessions import OWN_KERNEL

if TYPE_CHECKING:
    from cellblock.host import Session

_MOST = 8
"""Maximum number of servers per session in notes to its reader: code can start thousands."""


class ServerNotes:
    """The servers of one session that its reader was told about."""

    def __init__(self, name: str, kernel_type: str) -> None:
        """Begin without a server.

        Args:
            name: The session's name.
            kernel_type: The type of its kernel. Kernels of other languages listen themselves, for example for their output.
        """
        self._name = name
        self._tells = kernel_type == OWN_KERNEL
        self._told: set[int] = set()
        self._looking: asyncio.Task[None] | None = None

    def look(self, session: Session) -> None:
        """Look for new servers in the background, unless that is in progress."""
        ready = self._looking is None or self._looking.done()
        if self._tells and ready and session.wanted.tier.own_network and len(self._told) < _MOST:
            self._looking = asyncio.create_task(self._look(session))

    async def _look(self, session: Session) -> None:
        with suppress(CellblockError):  # it is ending
            if not await session.has_kernel():
                return
            for port in [port for port in await session.ports() if port not in self._told][: _MOST - len(self._told)]:
                self._told.add(port)
                command = f"cellblock open {shlex.quote(self._name)} {port}"
                session.cells.note(f"[cellblock] A server listens at port {port}. The user opens its page with: {command}")
