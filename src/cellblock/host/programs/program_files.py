"""A session's files as its programs see them: any path, with links followed and the session's permissions.

The host never follows a link of the session. A helper in the session's sandbox does (`cellblock.launch.init.files_helper`).
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import posixpath
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from cellblock.common.tasks import despite_cancellation
from cellblock.errors import InvalidInputError, ProcessError, shown
from cellblock.model.files import FileChange, FileInfo
from cellblock.wire.program_messages import LENGTHS

if TYPE_CHECKING:
    from cellblock.host.programs.process import Process

MAX_DEPTH = 1000
MAX_FILE = 1 << 30
"""Default for the most bytes of a file that is read."""
_IDLE = 60.0  # seconds after which an idle helper is ended
_PIECE = 1 << 20
_MAX_HEAD = 1 << 16
_MAX_LIST = 256 << 20
_MAX_CHANGES = 1 << 22
_LINES = 500
"""Files of a list that are read in one turn of the loop: 5 ms."""

StrPath: TypeAlias = str | os.PathLike[str]


class SessionFiles:
    """A session's files as its own code and programs see them: `Session.fs`.

    Relative paths are in the workspace. Errors are system errors, such as `FileNotFoundError`. `Session.files` works from
    outside instead: on the workspace alone, without following links.
    """

    def __init__(self, start: Callable[[], Awaitable[Process]]) -> None:
        """Store the argument. The helper starts with the first request.

        Args:
            start: Starts the helper.
        """
        self._start = start
        self._helper: _Conversation | None = None
        self._turn = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None

    async def read_bytes(self, path: StrPath, max_bytes: int = MAX_FILE) -> bytes:
        """Return the content of a file.

        Args:
            path: The file.
            max_bytes: Maximum size in bytes; a larger file raises OSError (EFBIG).
        """
        if not isinstance(max_bytes, int) or max_bytes < 0:
            raise InvalidInputError(f"max_bytes must be a number of bytes, not {max_bytes!r}")
        return (await self._ask("read", path, max_bytes, most=max_bytes))[1]

    async def read_part(self, path: StrPath, offset: int, count: int) -> tuple[FileInfo, bytes]:
        """Return a file's description and a part of its content, which is empty at or beyond its end.

        Args:
            path: The file.
            offset: Start of the part.
            count: Maximum number of bytes.
        """
        for name, value in (("offset", offset), ("count", count)):
            if type(value) is not int or not 0 <= value < 1 << 63:
                raise InvalidInputError(f"{name} must be a number of bytes, not {shown(value)}")
        about, data = await self._ask("read", path, count, most=count, offset=offset)
        return FileInfo(**about), data

    async def read_text(self, path: StrPath, encoding: str = "utf-8") -> str:
        """Return the content of a text file."""
        return (await self.read_bytes(path)).decode(encoding)

    async def write_parts(
        self, path: StrPath, parts: AsyncIterable[bytes], *, parents: bool = True, mode: int = 0o666
    ) -> FileInfo:
        """Write a file from parts. It appears once complete, and replaces an existing file or link.

        Args:
            path: The file.
            parts: The content.
            parents: Whether to create missing parent directories.
            mode: As for `write_bytes`.
        """
        folder, name = posixpath.split(_path(path))
        waiting = posixpath.join(folder, f".{name[:150]}.{secrets.token_hex(8)}.part")
        more: dict[str, Any] = {}
        try:
            async for part in parts:
                await self._ask("write", waiting, body=part, parents=parents, mode=mode, **more)
                more = {"more": True}
            if not more:
                await self._ask("write", waiting, parents=parents, mode=mode)
            await self._ask("rename", waiting, to=_path(path))
        except BaseException:
            with suppress(OSError, ProcessError):
                await despite_cancellation(asyncio.create_task(self.remove(waiting, missing_ok=True)))
            raise
        return await self.stat(path, follow=False)

    async def write_bytes(self, path: StrPath, data: bytes, *, parents: bool = True, mode: int = 0o666) -> None:
        """Write a file, replacing an existing one. Through a link, write the link's target.

        Args:
            path: The file.
            data: The content.
            parents: Whether to create missing parent directories.
            mode: Permissions of a new file, less the session's umask.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidInputError(f"data must be bytes, not {type(data).__name__}; write_text takes text")
        await self._ask("write", path, body=bytes(data), parents=parents, mode=mode)

    async def write_text(self, path: StrPath, text: str, encoding: str = "utf-8", *, parents: bool = True) -> None:
        """Write a text file, as `write_bytes` does."""
        await self.write_bytes(path, text.encode(encoding), parents=parents)

    async def stat(self, path: StrPath, *, follow: bool = True) -> FileInfo:
        """Describe a file or directory; with `follow`, a link's target."""
        return FileInfo(**(await self._ask("stat", path, follow=follow))[0])

    async def exists(self, path: StrPath) -> bool:
        """Return whether a path exists. A broken link does not count."""
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def list(self, path: StrPath = ".", *, depth: int = 1) -> list[FileInfo]:
        """List a directory by path. Links are described by their targets.

        Args:
            path: The directory.
            depth: Number of directory levels to list. Links to directories are not followed.
        """
        if type(depth) is not int or not 1 <= depth <= MAX_DEPTH:
            raise InvalidInputError(f"depth must be a number from 1 to {MAX_DEPTH}, not {shown(depth)}")
        lines = io.BytesIO((await self._ask("list", path, most=_MAX_LIST, depth=depth))[1])
        found: list[FileInfo] = []
        while some := [*islice(lines, _LINES)]:  # not all at once: there can be a million
            found += [FileInfo(**json.loads(line)) for line in some]
            await asyncio.sleep(0)
        return found

    @asynccontextmanager
    async def watch(self, path: StrPath = ".", *, recursive: bool = False) -> AsyncIterator[AsyncGenerator[FileChange, None]]:
        """Watch a directory: ``async with session.fs.watch("data") as changes: async for change in changes: …``.

        Every change after the block was entered is reported. Writing to a file can be reported several times.

        Args:
            path: The directory.
            recursive: Whether to watch subdirectories too. Links are not followed.

        Raises:
            OSError: The directory does not exist or cannot be watched. While changes are read: it was removed (ENOENT), or too
                many changes caused a loss (EOVERFLOW).
        """
        request = {"do": "watch", "path": _path(path), "recursive": bool(recursive)}
        helper = await self._start()
        conversation = _Conversation(helper)
        try:
            await conversation.send(json.dumps(request).encode())
            _checked((await conversation.receive(_MAX_CHANGES))[0], path)
            async with aclosing(_changes(conversation, path)) as changes:
                yield changes
        finally:
            await despite_cancellation(asyncio.create_task(helper.end("cancelled", "the watch was closed", 0.0)))

    async def mkdir(self, path: StrPath, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Create a directory.

        Args:
            path: The directory.
            parents: Whether to create missing parent directories.
            exist_ok: Whether it may already exist.
        """
        await self._ask("mkdir", path, parents=parents, exist_ok=exist_ok)

    async def remove(self, path: StrPath, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Remove a file, a link or a directory.

        Args:
            path: The path to remove.
            recursive: Whether to remove a directory with its contents; otherwise it must be empty.
            missing_ok: Whether it may be missing.
        """
        await self._ask("remove", path, recursive=recursive, missing_ok=missing_ok)

    async def rename(self, path: StrPath, to: StrPath) -> None:
        """Rename a file or directory. An existing file at the new path is replaced."""
        await self._ask("rename", path, to=_path(to))

    async def realpath(self, path: StrPath, *, strict: bool = False) -> str:
        """Return the path without links.

        Args:
            path: The path.
            strict: Whether every component must exist.
        """
        return str((await self._ask("realpath", path, strict=strict))[0])

    async def close(self) -> None:
        """End the helper. Idempotent."""
        if self._idle is not None:
            self._idle.cancel()
        helper, self._helper = self._helper, None
        if helper is not None:
            await helper.process.end("cancelled", "its session was closed", 0.0)

    # -- the helper ----------------------------------------------------------------------------------------------------

    async def _ask(
        self, do: str, path: StrPath, most_read: int | None = None, *, body: bytes = b"", most: int = 0, **fields: Any
    ) -> tuple[Any, bytes]:
        request = {"do": do, "path": _path(path), **fields}
        if most_read is not None:
            request["most"] = most_read
        async with self._turn:
            task = asyncio.create_task(self._converse(json.dumps(request).encode(), body, most))
            try:
                # To its end, even on cancellation: otherwise the answer would count for the next request.
                await despite_cancellation(task)
            finally:
                self._rest()
            answer, data = task.result()
        return _checked(answer, path)["found"], data

    async def _converse(self, head: bytes, body: bytes, most: int) -> tuple[dict[str, Any], bytes]:
        helper = await self._living_helper()
        try:
            await helper.send(head, body)
            return await helper.receive(most)
        except ProcessError as error:
            await self.close()
            raise ProcessError(f"{error}; it may have completed in part") from None

    async def _living_helper(self) -> _Conversation:
        if self._helper is None or self._helper.process.poll() is not None:
            self._helper = _Conversation(await self._start())
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        return self._helper

    def _rest(self) -> None:
        """End the helper after an idle time."""
        if self._helper is not None:
            self._idle = asyncio.get_running_loop().call_later(_IDLE, self._helper.process.kill, "it was idle")


class _Conversation:
    """Requests to a helper, and its answers.

    Attributes:
        process: The helper.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self._position = 0
        self._unread = bytearray()

    async def send(self, head: bytes, body: bytes = b"") -> None:
        """Send a request.

        Raises:
            ProcessError: The helper has ended.
        """
        try:
            await self.process.write(LENGTHS.pack(len(head), len(body)) + head)
            for start in range(0, len(body), _PIECE):
                await self.process.write(body[start : start + _PIECE])
        except BrokenPipeError as error:
            raise ProcessError(f"the helper for files of the session has ended: {error}") from None

    async def receive(self, most: int) -> tuple[dict[str, Any], bytes]:
        """Return the head and the body of the next answer.

        Raises:
            ProcessError: The answer is missing or too large.
        """
        size, length = LENGTHS.unpack(await self._read(LENGTHS.size))
        if size > _MAX_HEAD or length > most:
            raise ProcessError(f"the helper for files sent {size + length:,} bytes, more than was asked for")
        try:
            answer = json.loads(await self._read(size))
        except ValueError as error:
            raise ProcessError(f"the helper for files of the session sent no answer of its own: {error}") from None
        return answer, await self._read(length)

    async def _read(self, size: int) -> bytes:
        while len(self._unread) < size:
            pieces = await self.process.read(self._position)
            if not pieces:
                raise ProcessError("the helper for files of the session has ended without an answer")
            for piece in pieces:
                self._position = piece.offset + len(piece.data)
                if piece.stream == "stdout":
                    self._unread += piece.data
        found = bytes(self._unread[:size])
        del self._unread[:size]
        return found


async def _changes(conversation: _Conversation, path: StrPath) -> AsyncGenerator[FileChange, None]:
    while True:
        answer, data = await conversation.receive(_MAX_CHANGES)
        _checked(answer, path)
        try:
            found = [FileChange(kind, os.fspath(changed)) for kind, changed in json.loads(data)]
        except (ValueError, TypeError) as error:  # in a session without a sandbox, code can reach the helper
            raise ProcessError(f"the helper for files of the session sent no changes of its own: {error}") from None
        for change in found:
            yield change


def _checked(answer: dict[str, Any], path: StrPath) -> dict[str, Any]:
    if "errno" in answer:
        raise OSError(answer["errno"], answer["why"], _path(path))
    return answer


def _path(path: StrPath) -> str:
    try:
        found = os.fspath(path)
    except TypeError:
        found = ""
    if not isinstance(found, str) or not found or "\0" in found:
        raise InvalidInputError(f"a path must be a string without NUL characters, not {shown(path)}")
    return found
