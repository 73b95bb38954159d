"""The standard input of a server, as a pipe.

Python 3.11's asyncio would create a socket. A server can send descriptors over a socket, and the system closes unreceived
ones together with our end, in the event loop. Closing takes long for the last descriptor of a large file, or of a lingering
connection.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from typing import BinaryIO

import anyio


class ServerInput(asyncio.BaseProtocol):
    """A writer to the standard input of a server, created by `open`."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    @classmethod
    async def open(cls) -> tuple[ServerInput, BinaryIO]:
        """Create a pipe; return our end, and the server's."""
        theirs, ours = _pipe()
        with ExitStack() as undo:
            undo.callback(theirs.close)
            _, made = await asyncio.get_running_loop().connect_write_pipe(cls, ours)
            undo.pop_all()
        return made, theirs

    async def write(self, data: bytes) -> None:
        """Write, once the server has read enough of the earlier data.

        Raises:
            BrokenResourceError: The server no longer reads, or the input was closed.
        """
        await self._writable.wait()
        if self._transport is None or self._transport.is_closing():
            raise anyio.BrokenResourceError
        self._transport.write(data)

    def close(self) -> None:
        """Close the input after pending data."""
        if self._transport is not None:
            self._transport.close()

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that the server no longer reads."""
        self._transport = None
        self._writable.set()

    def pause_writing(self) -> None:
        """Block writers, because the server does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Unblock writers."""
        self._writable.set()


def _pipe() -> tuple[BinaryIO, BinaryIO]:
    reader, writer = os.pipe()
    return open(reader, "rb", 0), open(writer, "wb", 0)  # the caller closes them
