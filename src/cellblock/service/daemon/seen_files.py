"""Files as the session's own code sees them, for paths outside the workspace, with the interface of `Files`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from typing import TYPE_CHECKING

from cellblock.host.files.failures import telling
from cellblock.host.programs.program_files import MAX_DEPTH

if TYPE_CHECKING:
    from cellblock.host.programs.program_files import SessionFiles
    from cellblock.model.files import FileChange, FileInfo


class SeenFiles:
    """Files at absolute paths, accessed by the session's user in the session's sandbox.

    Raises:
        FilesError: In each method, the system's error.
    """

    def __init__(self, files: SessionFiles) -> None:
        self._files = files

    async def list(self, path: str, *, recursive: bool = False) -> list[FileInfo]:
        with telling("list", path):
            return await self._files.list(path, depth=MAX_DEPTH if recursive else 1)

    async def read(self, path: str, *, max_bytes: int) -> bytes:
        with telling("read", path):
            return await self._files.read_bytes(path, max_bytes)

    async def read_part(self, path: str, offset: int, count: int) -> tuple[FileInfo, bytes]:
        """Read a part of a file, and describe the file at that time."""
        with telling("read", path):
            return await self._files.read_part(path, offset, count)

    async def write(self, path: str, data: bytes | AsyncIterable[bytes]) -> FileInfo:
        """Write a file atomically; create missing parent folders."""
        with telling("write", path):
            return await self._files.write_parts(path, _one(data) if isinstance(data, bytes) else data)

    async def stat(self, path: str) -> FileInfo:
        """Describe what is at a path; a link as such."""
        with telling("describe", path):
            return await self._files.stat(path, follow=False)

    async def mkdir(self, path: str) -> None:
        """Create a folder and its parents; existing folders are no error."""
        with telling("make", path):
            await self._files.mkdir(path, parents=True, exist_ok=True)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link, an empty folder, or a folder with its content."""
        with telling("remove", path):
            await self._files.remove(path, recursive=recursive)

    async def rename(self, path: str, to: str) -> None:
        """Rename a file or folder; replace an existing file."""
        with telling("rename", path):
            await self._files.rename(path, to)

    async def watch(self, path: str, *, recursive: bool = False) -> AsyncGenerator[FileChange, None]:
        """Yield the start of the watch, then the changes."""
        from cellblock.model.files import FileChange

        with telling("watch", path):
            async with self._files.watch(path, recursive=recursive) as changes:
                yield FileChange("watching", "")
                async with aclosing(changes):
                    async for change in changes:
                        yield change


async def _one(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data
