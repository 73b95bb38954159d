"""Files of a session as its programs see them: any path, links followed, with the rights of the session's user.

The host never follows a link of the session. A helper does, in the session's sandbox (`cellblock.launch.init.files_helper`).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from cellblock.errors import InvalidInputError, ProcessError, shown
from cellblock.host.kernels.stopping import despite_cancellation
from cellblock.model.files import FileInfo
from cellblock.wire.programs import LENGTHS

if TYPE_CHECKING:
    from cellblock.host.programs.process import Process

MAX_FILE = 1 << 30
"""Default for the most bytes of a file that is read."""
_IDLE = 60.0  # seconds after which a helper without work is ended
_PIECE = 1 << 20
_MAX_HEAD = 1 << 16
_MAX_LIST = 64 << 20

StrPath: TypeAlias = str | os.PathLike[str]


class SessionFiles:
    """The files of a session as its own code and programs see them: `Session.fs`.

    Relative paths are in the workspace. Errors are those of the system, such as `FileNotFoundError`. `Session.files` works
    from outside instead: on the workspace alone, without following links.
    """

    def __init__(self, start: Callable[[], Awaitable[Process]]) -> None:
        """Prepare; the helper starts with the first request.

        Args:
            start: Starts the helper.
        """
        self._start = start
        self._helper: Process | None = None
        self._position = 0
        self._unread = bytearray()
        self._turn = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None

    async def read_bytes(self, path: StrPath, max_bytes: int = MAX_FILE) -> bytes:
        """Return the content of a file.

        Args:
            path: The file.
            max_bytes: The most bytes; a larger file is an OSError (EFBIG).
        """
        if not isinstance(max_bytes, int) or max_bytes < 0:
            raise InvalidInputError(f"max_bytes must be a number of bytes, not {max_bytes!r}")
        return (await self._ask("read", path, max_bytes, most=max_bytes))[1]

    async def read_text(self, path: StrPath, encoding: str = "utf-8") -> str:
        """Return the content of a text file."""
        return (await self.read_bytes(path)).decode(encoding)

    async def write_bytes(self, path: StrPath, data: bytes, *, parents: bool = True, mode: int = 0o666) -> None:
        """Write a file, in place of an existing one; through a link, the file that it names.

        Args:
            path: The file.
            data: Its content.
            parents: Whether to make missing directories above it.
            mode: The permissions of a new file, less what the session's umask takes.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidInputError(f"data must be bytes, not {type(data).__name__}; write_text takes text")
        await self._ask("write", path, body=bytes(data), parents=parents, mode=mode)

    async def write_text(self, path: StrPath, text: str, encoding: str = "utf-8", *, parents: bool = True) -> None:
        """Write a text file, as `write_bytes` does."""
        await self.write_bytes(path, text.encode(encoding), parents=parents)

    async def stat(self, path: StrPath, *, follow: bool = True) -> FileInfo:
        """Return what is known of a file or directory; of a link, with `follow`, what it leads to."""
        return FileInfo(**(await self._ask("stat", path, follow=follow))[0])

    async def exists(self, path: StrPath) -> bool:
        """Return whether there is something at a path; a link that leads to nothing does not count."""
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def list(self, path: StrPath = ".") -> list[FileInfo]:
        """Return what a directory contains, by name. Links are described by what they lead to."""
        found = await self._ask("list", path, most=_MAX_LIST)
        return [FileInfo(**one) for one in json.loads(found[1])]

    async def mkdir(self, path: StrPath, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Make a directory.

        Args:
            path: The directory.
            parents: Whether to make missing directories above it.
            exist_ok: Whether it may exist already.
        """
        await self._ask("mkdir", path, parents=parents, exist_ok=exist_ok)

    async def remove(self, path: StrPath, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Remove a file, a link or a directory.

        Args:
            path: What to remove.
            recursive: Whether to remove a directory with all that it contains; otherwise it must be empty.
            missing_ok: Whether it may be missing.
        """
        await self._ask("remove", path, recursive=recursive, missing_ok=missing_ok)

    async def rename(self, path: StrPath, to: StrPath) -> None:
        """Give a file or directory another name; a file of that name is replaced."""
        await self._ask("rename", path, to=_path(to))

    async def realpath(self, path: StrPath, *, strict: bool = False) -> str:
        """Return the path without links.

        Args:
            path: The path.
            strict: Whether everything on it must exist.
        """
        return str((await self._ask("realpath", path, strict=strict))[0])

    async def close(self) -> None:
        """End the helper. It can be repeated."""
        if self._idle is not None:
            self._idle.cancel()
        helper, self._helper = self._helper, None
        if helper is not None:
            await helper.end("cancelled", "its session was closed", 0.0)

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
                # To its end, also if the caller is cancelled: the answer would be taken for that of the next request.
                await despite_cancellation(task)
            finally:
                self._rest()
            answer, data = task.result()
        if "errno" in answer:
            raise OSError(answer["errno"], answer["why"], _path(path))
        return answer["found"], data

    async def _converse(self, head: bytes, body: bytes, most: int) -> tuple[dict[str, Any], bytes]:
        helper = await self._living_helper()
        try:
            await helper.write(LENGTHS.pack(len(head), len(body)) + head)
            for start in range(0, len(body), _PIECE):
                await helper.write(body[start : start + _PIECE])
            size, length = LENGTHS.unpack(await self._read(helper, LENGTHS.size))
            if size > _MAX_HEAD or length > most:
                raise ProcessError(f"the helper for files sent {size + length:,} bytes, more than was asked for")
            answer = json.loads(await self._read(helper, size))
            return answer, await self._read(helper, length)
        except (BrokenPipeError, ProcessError, ValueError) as error:
            await self.close()
            raise ProcessError(f"the helper for files of the session has ended: {error}; what it did is not known") from None

    async def _living_helper(self) -> Process:
        if self._helper is None or self._helper.poll() is not None:
            self._helper, self._position = await self._start(), 0
            self._unread.clear()
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        return self._helper

    async def _read(self, helper: Process, size: int) -> bytes:
        while len(self._unread) < size:
            pieces = await helper.read(self._position)
            if not pieces:
                raise ProcessError("it sent no answer")
            for piece in pieces:
                self._position = piece.offset + len(piece.data)
                if piece.stream == "stdout":
                    self._unread += piece.data
        found = bytes(self._unread[:size])
        del self._unread[:size]
        return found

    def _rest(self) -> None:
        """End the helper after a while without work."""
        if self._helper is not None:
            self._idle = asyncio.get_running_loop().call_later(_IDLE, self._helper.kill, "it had nothing to do")


def _path(path: StrPath) -> str:
    try:
        found = os.fspath(path)
    except TypeError:
        found = ""
    if not isinstance(found, str) or not found or "\0" in found:
        raise InvalidInputError(f"a path must be a string without NUL characters, not {shown(path)}")
    return found
