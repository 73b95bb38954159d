"""Files that arrive in parts, because they exceed one request. Each upload is atomic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from cellblock.errors import BusyError, FilesError

if TYPE_CHECKING:
    from cellblock.host.files import FileInfo, Files
    from cellblock.service.daemon.seen_files import SeenFiles

_MOST = 64
_PATIENCE = 60.0
"""Seconds after which an upload is given up if no part of it comes."""


class Uploads:
    """The uploads in progress."""

    def __init__(self) -> None:
        self._uploads: dict[str, _Upload] = {}

    def __len__(self) -> int:
        return len(self._uploads)

    async def take(self, files: Files | SeenFiles, path: str, number: str, part: bytes, *, more: bool) -> FileInfo | None:
        """Write the next part of a file.

        Args:
            files: The destination.
            path: The file.
            number: Identifies the upload; the sender chooses it, and it is the same for all parts.
            part: The bytes.
            more: Whether more parts follow.

        Returns:
            The file, once it is complete.

        Raises:
            InvalidInputError, FilesError: As `Files.write`; the upload is aborted.
            BusyError: There are too many uploads.
        """
        upload = self._uploads.get(number)
        if upload is None:
            if len(self._uploads) >= _MOST:
                raise BusyError(f"{_MOST} files are being written already: try again later", 5.0)
            upload = self._uploads[number] = _Upload(files, path)
            upload.task.add_done_callback(lambda _: self._uploads.pop(number, None))
        await upload.put(part)
        if more:
            return None
        await upload.put(None)
        return await asyncio.shield(upload.task)

    async def give_up(self, number: str) -> None:
        """Abort an upload, if it exists, and wait until its data is removed."""
        if (upload := self._uploads.get(number)) is not None:
            upload.task.cancel()
            await asyncio.wait([upload.task])


class _Upload:
    """An upload of one file."""

    def __init__(self, files: Files | SeenFiles, path: str) -> None:
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._path = path
        self.task = asyncio.create_task(files.write(path, self._received()))
        self.task.add_done_callback(
            lambda task: task.cancelled() or task.exception()
        )  # mark as retrieved: there may be no waiter

    async def put(self, part: bytes | None) -> None:
        """Wait until there is room for a part. Raise if the file cannot be written."""
        putting = asyncio.create_task(self._parts.put(part))
        try:
            await asyncio.wait([putting, self.task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            putting.cancel()
        if self.task.done():
            self.task.result()

    async def _received(self) -> AsyncIterator[bytes]:
        try:
            while True:
                async with asyncio.timeout(_PATIENCE):
                    part = await self._parts.get()
                if part is None:
                    return
                yield part
        except TimeoutError:
            raise FilesError(f"{self._path!r} was not written: its upload stopped", path=self._path) from None
