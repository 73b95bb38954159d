"""Writes to the standard input of a program without blocking the event loop."""

from __future__ import annotations

import asyncio
import os

_PIECE = 1 << 20


class Stdin:
    """The host's end of a program's standard input or terminal."""

    def __init__(self, descriptor: int) -> None:
        """Take ownership of a non-blocking descriptor."""
        self._descriptor: int | None = descriptor
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._room: asyncio.Future[None] | None = None

    async def write(self, data: bytes) -> None:
        """Write all data. Returns when the program, or the operating system for it, has taken it.

        Raises:
            BrokenPipeError: The program no longer reads, or its standard input was closed.
        """
        async with self._turn:
            view = memoryview(data)
            while view:
                if self._descriptor is None:
                    raise BrokenPipeError("the program's standard input is closed")
                try:
                    view = view[os.write(self._descriptor, view[:_PIECE]) :]
                except BlockingIOError:
                    await self._wait_for_room(self._descriptor)
                except OSError as error:
                    raise BrokenPipeError(f"the program has closed its standard input: {error.strerror}") from error

    async def _wait_for_room(self, descriptor: int) -> None:
        self._room = self._loop.create_future()
        self._loop.add_writer(descriptor, _settle, self._room)
        try:
            await self._room
        finally:
            if self._descriptor is not None:
                self._loop.remove_writer(descriptor)
            self._room = None

    def close(self) -> None:
        """Close the descriptor, so that the program reads the end. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        if self._room is not None:
            self._loop.remove_writer(descriptor)
            _settle(self._room)
        os.close(descriptor)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
