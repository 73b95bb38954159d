"""The ends that an `Exchange` connects: sockets without TLS here, with TLS in `walls.keys`."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Protocol

from cellblock.walls.egress.tunnel import reset


class End(Protocol):
    """One end of a connection."""

    async def receive(self, size: int) -> bytes:
        """Return the next bytes, at most `size`; none at the end of the stream.

        Raises:
            OSError: The connection is broken.
        """

    async def send(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            OSError: The connection is broken.
        """

    def end(self) -> None:
        """Close the sending direction."""

    def close(self) -> None:
        """Close the connection."""

    def reset(self) -> None:
        """Reset the connection, so that the other side treats its data as incomplete."""


class PlainEnd:
    """A socket without TLS, non-blocking."""

    def __init__(self, connection: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection

    async def receive(self, size: int) -> bytes:
        return await self._loop.sock_recv(self._connection, size)

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._connection, data)

    def end(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._connection.close()

    def reset(self) -> None:
        reset(self._connection)
