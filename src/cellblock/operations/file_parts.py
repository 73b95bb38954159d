"""Transfers of a session's files part by part."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from cellblock.errors import CellblockError, FilesError
from cellblock.operations.files import ReadPart, WritePart

_PART = 4 * 1024 * 1024


async def write_in_parts(
    call: Callable[[WritePart, bytes], Awaitable[Any]], session: str, path: str, pieces: AsyncIterable[bytes]
) -> Any:
    """Write a file atomically, and return its description. Received parts are dropped if this fails or is cancelled.

    Args:
        call: Runs an operation.
        session: The session.
        path: The path of the file.
        pieces: The content.
    """
    import asyncio  # not for clients without a loop, which only read

    upload, waiting = secrets.token_hex(16), bytearray()

    async def drop() -> None:
        with suppress(CellblockError):
            await call(WritePart(session, path, upload, abort=True), b"")

    try:
        async for piece in pieces:
            waiting += piece
            if len(waiting) >= _PART:
                await call(WritePart(session, path, upload), bytes(waiting))
                waiting.clear()
        return await call(WritePart(session, path, upload, more=False), bytes(waiting))
    except BaseException:  # also a cancellation
        await asyncio.shield(drop())
        raise


class FileReading:
    """A reader of one file, which must not change meanwhile. It does no I/O: its owner sends `next`, and passes the answer.

    Attributes:
        offset: The number of bytes read.
        size: The size of the file; None until the first part has arrived.
    """

    def __init__(self, session: str, path: str) -> None:
        self._session, self._path = session, path
        self._known: Mapping[str, Any] | None = None
        self.offset = 0
        self.size: int | None = None

    @property
    def next(self) -> ReadPart | None:
        """The next request; None at the end of the file."""
        if self.size is not None and self.offset >= self.size:
            return None
        return ReadPart(self._session, self._path, self.offset, _PART)

    def take(self, answer: Mapping[str, Any]) -> bytes:
        """Handle an answer; return the part of the file.

        Raises:
            FilesError: The file has changed since the first part.
        """
        known = self._known = self._known or answer["file"]
        self.size = known["size"]
        data: bytes = answer["data"]
        if answer["file"] != known or (not data and self.offset < known["size"]):
            raise FilesError(f"{self._path!r} changed while it was read: try again", path=self._path)
        self.offset += len(data)
        return data
