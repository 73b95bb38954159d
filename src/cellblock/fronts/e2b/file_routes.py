"""Files of E2B's clients: ``/files``."""

from __future__ import annotations

import errno
import zlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from cellblock.errors import FilesError, InvalidInputError, UnsupportedError
from cellblock.fronts.e2b.contexts import contexts_of
from cellblock.operations.file_parts import FileReading, write_in_parts

_PART = 4 * 1024 * 1024
_IN_MEMORY, _MOST_FIELDS = 64 * 1024, 16
_USERS = ("", "user")


async def download(request: Request) -> Response:
    """Send a file."""
    contexts = contexts_of(request)
    check_user(request.query_params.get("username", ""))
    path = contexts.workspace.inner(request.query_params.get("path", ""))
    reading = FileReading(await contexts.ready(), path)
    first = await _next(request, reading)
    headers = {"Content-Length": str(reading.size), "X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment"}
    return StreamingResponse(_parts(request, reading, first), 200, headers, "application/octet-stream")


async def _parts(request: Request, reading: FileReading, part: bytes) -> AsyncIterator[bytes]:
    """Yield a file part by part. If it changes meanwhile, stop: the reader detects the missing bytes."""
    while part:
        yield part
        part = await _next(request, reading)


async def _next(request: Request, reading: FileReading) -> bytes:
    """Read the next part of a file; empty at its end."""
    asked, link = reading.next, request.app.state.link
    return b"" if asked is None else reading.take(await link.call(asked))


async def upload(request: Request) -> Response:
    """Write the files in the body. Each is written atomically, and missing directories are created."""
    check_user(request.query_params.get("username", ""))
    if any(name.startswith("x-metadata-") for name in request.headers):
        raise UnsupportedError("file metadata is not supported: leave it out")
    given = request.query_params.get("path", "")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/octet-stream":
        return JSONResponse([await _write(request, given, _plain(request))])
    if kind != "multipart/form-data":
        raise InvalidInputError("the Content-Type must be multipart/form-data or application/octet-stream")
    form = await _form(request)
    try:
        files = [file for file in form.getlist("file") if isinstance(file, UploadFile)]  # others are left out, as by envd
        if not files:
            raise InvalidInputError("the body has no file in a field of the name 'file'")
        if given and len(files) > 1:
            raise InvalidInputError("path is for one file: the names of several are in the body")
        return JSONResponse([await _write(request, given or file.filename or "", _pieces(file)) for file in files])
    finally:
        await form.close()


async def _form(request: Request) -> FormData:
    """Parse a form. Its files, a thousand at most, are in memory up to 64 KiB each, and in temporary files above.

    Raises:
        InvalidInputError: The body is not a form, or has too many parts.
    """
    parser = MultiPartParser(request.headers, request.stream(), max_fields=_MOST_FIELDS)
    parser.spool_max_size = _IN_MEMORY  # `Request.form` would keep a megabyte of each in memory
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise InvalidInputError(error.message) from None


async def _pieces(file: UploadFile) -> AsyncIterator[bytes]:
    while piece := await file.read(_PART):
        yield piece


async def _plain(request: Request) -> AsyncIterator[bytes]:
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


async def _write(request: Request, given: str, pieces: AsyncIterator[bytes]) -> dict[str, Any]:
    """Write a file, and return its description for E2B's clients.

    Args:
        request: The request.
        given: The client's path.
        pieces: The content.

    Raises:
        InvalidInputError: The path is invalid.
        FilesError: The file is too large (known late for a compressed file), or cannot be written.
    """
    contexts, state = contexts_of(request), request.app.state
    path = contexts.workspace.inner(given)
    await write_in_parts(state.link.call, await contexts.ready(), path, _bounded(pieces, state.max_upload))
    outer = contexts.workspace.outer(path)
    return {"name": outer.rpartition("/")[2], "type": "file", "path": outer}


async def _bounded(pieces: AsyncIterator[bytes], most: int) -> AsyncIterator[bytes]:
    size = 0
    async for piece in pieces:
        size += len(piece)
        check_size(size, most)
        yield piece


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
