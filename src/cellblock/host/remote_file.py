"""A saved session's file at a URL, copied as a whole to or from a temporary local file."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from cellblock.common.url_folder import folder_at
from cellblock.common.urls import is_url, local_path, split
from cellblock.host.files.steps import in_thread
from cellblock.host.new_file import UnnamedFile


class RemoteFile:
    """A file at a URL.

    Attributes:
        url: The URL.
    """

    def __init__(self, url: str) -> None:
        """Validate the URL without a request.

        Raises:
            InvalidInputError: It cannot be the URL of a file.
        """
        self.url = url
        place, self._name = split(url)
        self._folder = folder_at(place)

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> RemoteFile | None:
        """Return the file at a URL; None for a path. Raises as the constructor."""
        return cls(path) if isinstance(path, str) and is_url(path) else None

    async def prepare(self) -> None:
        """Check, before any other work, that a package for the URL's scheme is installed.

        Raises:
            UnsupportedError: It is not.
        """
        await in_thread(self._folder.prepare)

    async def write(self, path: Path) -> None:
        """Copy a local file to the URL atomically.

        Raises:
            StoreError: It cannot be written.
        """
        await _until_cancelled(lambda stop: self._folder.upload(self._name, str(path), stop))

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Path]:
        """Copy the file to a temporary local one, and yield its path.

        Raises:
            StoreError: It cannot be read, or is too large.
        """
        local = UnnamedFile()
        try:
            await in_thread(local.open)
            await _until_cancelled(lambda stop: self._folder.download(self._name, local.file, stop))
            await in_thread(local.finish)
            yield local.path
        finally:
            await in_thread(local.close)


def as_path(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return the path of a ``file:`` URL; return any other path unchanged.

    Raises:
        InvalidInputError: The URL is not supported.
    """
    return (isinstance(path, str) and is_url(path) and local_path(path)) or path


async def _until_cancelled(function: Callable[[threading.Event], None]) -> None:
    """Call a function in a thread. On cancellation, tell the function to stop, and wait for it."""
    stop = threading.Event()
    call = asyncio.ensure_future(in_thread(function, stop))
    try:
        await asyncio.shield(call)
    except asyncio.CancelledError:
        stop.set()
        while not call.done():
            try:
                await asyncio.wait([call])
            except asyncio.CancelledError:
                continue  # one is enough: it is raised once the function has returned
        if not call.cancelled():
            call.exception()  # mark as retrieved: the caller gets the cancellation
        raise
