"""Files of E2B's clients: ``/files``."""

from __future__ import annotations

import asyncio
import errno
import secrets
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from cellblock.errors import CellblockError, FilesError, InvalidInputError, UnsupportedError
from cellblock.fronts.e2b.contexts import contexts_of
from cellblock.fronts.e2b.multipart import Parts
from cellblock.operations.files import ReadPart, WritePart

if TYPE_CHECKING:
    from cellblock.fronts.e2b.contexts import Contexts

_PART = 4 * 1024 * 1024
_USERS = ("", "user")


async def download(request: Request) -> Response:
    """Send a file."""
    contexts = contexts_of(request)
    check_user(request.query_params.get("username", ""))
    path = contexts.workspace.inner(request.query_params.get("path", ""))
    first = await contexts.ask(lambda session: ReadPart(session, path, 0, _PART))
    size = first["file"]["size"]
    headers = {"Content-Length": str(size), "X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment"}
    return StreamingResponse(_parts(contexts, path, first), 200, headers, "application/octet-stream")


async def _parts(contexts: Contexts, path: str, first: dict[str, Any]) -> AsyncIterator[bytes]:
    """Yield a file part by part. If it changes meanwhile, stop: the reader detects the missing bytes."""
    part, known, sent = first, first["file"], 0
    while sent < known["size"]:
        if part["file"] != known or not part["data"]:
            raise FilesError(f"{path!r} changed while it was read", path=path)
        yield part["data"]
        sent += len(part["data"])
        part = await contexts.ask(partial(ReadPart, path=path, offset=sent, count=_PART))


async def upload(request: Request) -> Response:
    """Write the files in the body. Each is written atomically, and missing directories are created."""
    contexts = contexts_of(request)
    check_user(request.query_params.get("username", ""))
    if any(name.startswith("x-metadata-") for name in request.headers):
        raise UnsupportedError("file metadata is not supported: leave it out")
    given, most = request.query_params.get("path", ""), request.app.state.max_upload
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/octet-stream":
        writer = Writer(contexts, given, most)
        async with aclosing(_plain(request)) as pieces, writer:
            async for piece in pieces:
                await writer.write(piece)
            await writer.finish()
        return JSONResponse([writer.written])
    parts = Parts(request.headers.get("content-type", ""))
    return JSONResponse(await _write_parts(contexts, parts, request.stream(), given, most))


async def _write_parts(
    contexts: Contexts, parts: Parts, body: AsyncIterator[bytes], given: str, most: int
) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    writer: Writer | None = None
    try:
        async for part in parts.read(body):
            if part.name != "file":
                continue  # as envd does
            if writer is None:
                if given and written:
                    raise InvalidInputError("path is for one file: the names of several are in the body")
                writer = Writer(contexts, given or part.filename, most)
            await writer.write(part.data)
            if part.last:
                await writer.finish()
                written.append(writer.written)
                writer = None
    finally:
        if writer is not None:
            await writer.close()
    if not written:
        raise InvalidInputError("the body has no file in a field of the name 'file'")
    return written


async def _plain(request: Request) -> AsyncGenerator[bytes, None]:
    """Yield a body, decompressed if necessary.

    Raises:
        InvalidInputError: The compression is not gzip.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise InvalidInputError(f"the Content-Encoding can be gzip, not {encoding[:40]!r}")
    unpacker = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
    async for piece in request.stream():
        if unpacker is None:
            yield piece
            continue
        try:
            while piece:
                yield unpacker.decompress(piece, _PART)
                piece = unpacker.unconsumed_tail
        except zlib.error as wrong:
            raise InvalidInputError(f"the body is not compressed by gzip: {wrong}") from None
    if unpacker is not None and not unpacker.eof:
        raise InvalidInputError("the body ends before what gzip has compressed does")


class Writer:
    """An atomic writer of one file. An incomplete file is dropped.

    Attributes:
        written: The answer that describes the complete file to E2B's clients.
    """

    def __init__(self, contexts: Contexts, path: str, most: int) -> None:
        """Start a file.

        Args:
            contexts: The contexts of the sandbox.
            most: The maximum number of bytes.
            path: The client's path.

        Raises:
            InvalidInputError: The path is invalid.
        """
        self._contexts = contexts
        self._most = most
        self._path = contexts.workspace.inner(path)
        self._upload = secrets.token_hex(16)
        self._waiting = bytearray()
        self._size = 0
        self.written: dict[str, Any] = {}

    async def write(self, data: bytes) -> None:
        """Write the next bytes.

        Raises:
            FilesError: The file becomes too large (known late for a compressed file), or cannot be written.
        """
        self._size += len(data)
        check_size(self._size, self._most)
        self._waiting += data
        if len(self._waiting) >= _PART:
            await self._send(more=True)

    async def finish(self) -> None:
        """Move the complete file into place."""
        await self._send(more=False)
        path = self._contexts.workspace.outer(self._path)
        self.written = {"name": path.rpartition("/")[2], "type": "file", "path": path}

    async def close(self) -> None:
        """Drop the file if it is incomplete."""
        if not self.written:
            await asyncio.shield(asyncio.create_task(self._drop()))

    async def __aenter__(self) -> Writer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, *, more: bool) -> None:
        data = bytes(self._waiting)
        self._waiting.clear()
        await self._contexts.ask(lambda session: WritePart(session, self._path, self._upload, more=more), data)

    async def _drop(self) -> None:
        with suppress(CellblockError, ClientDisconnect):
            await self._contexts.ask(lambda session: WritePart(session, self._path, self._upload, abort=True))


def check_size(size: int, most: int) -> None:
    """Check the size of a file.

    Raises:
        FilesError: The file is too large.
    """
    if size > most:
        raise FilesError(f"a file can have {most} bytes", errno=errno.EFBIG)


def check_user(name: str) -> None:
    """Check the user of a request: a sandbox has one user.

    Raises:
        UnsupportedError: It is another user.
    """
    if name not in _USERS:
        raise UnsupportedError(f"there is one user, 'user', and no {name[:40]!r}: leave the user out")
