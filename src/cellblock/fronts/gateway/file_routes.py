"""The files of a session: listing, reading with ranges, writing, removing. Files of any size are sent in pieces."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import StreamingResponse
from starlette.convertors import Convertor, register_url_convertor

from cellblock.errors import FilesError
from cellblock.fronts.gateway.access import check_scope, link_of
from cellblock.fronts.gateway.answers import json_response
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.models import model_of
from cellblock.fronts.gateway.routes import add
from cellblock.fronts.gateway.session_routes import Read, Run
from cellblock.model.files import FileInfo
from cellblock.operations.base import AnswerT
from cellblock.operations.base import Request as Asked
from cellblock.operations.file_parts import write_in_parts
from cellblock.operations.files import ListFiles, MakeFolder, ReadPart, RemoveFile, RenameFile, StatFile
from cellblock.service.daemon.link import SessionLink
from cellblock.service.store.tokens import Token


class _AnyPath(Convertor[str]):
    """A path of any characters: Starlette's own converter ends at a line break."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("file", _AnyPath())

router = APIRouter(tags=["Files"], route_class=CheckedRoute)

_PART = 4 * 1024 * 1024
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)


def check_path(path: str, caller: Token) -> None:
    """Check that a caller may read at a path. Paths outside the workspace are read with the rights of the session's code.

    Raises:
        AccessError: The caller may not.
    """
    if path.startswith("/"):
        check_scope(caller, "run", ": a path that begins with a slash needs it; others are relative to the workspace")


async def _read(request: Request, caller: Token, asked: Asked[AnswerT]) -> AnswerT:
    check_path(asked.path, caller)  # type: ignore[attr-defined]  # every request that is answered by this has one
    return await link_of(request).call(asked)


add(router, ListFiles, _read)
add(router, StatFile, _read)
add(router, MakeFolder)
add(router, RenameFile)


@router.get(
    "/sessions/{session}/files/{path:file}",
    response_class=Response,
    summary="Read a file",
    responses={
        200: {"description": "The file.", "content": {"application/octet-stream": {}}},
        206: {"description": "A part of it.", "content": {"application/octet-stream": {}}},
        304: {"description": "It has not changed."},
        416: {"description": "It has no such part."},
    },
)
async def read_file(
    request: Request,
    session: str,
    path: str,
    caller: Read,
    wanted: Annotated[str, Header(alias="Range", max_length=100)] = "",
    if_range: Annotated[str, Header(alias="If-Range", max_length=100)] = "",
    if_none_match: Annotated[str, Header(alias="If-None-Match", max_length=100)] = "",
) -> Response:
    """Read a file, or a part of it. Only one range is served; for several, all of the file is."""
    check_path(path, caller)
    link = link_of(request)
    known = (await link.call(ReadPart(session, path, 0, 0)))["file"]
    tag = f'"{known["size"]:x}-{known["modified"]:.6f}"'
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": tag,
        "Cache-Control": "no-cache",
        # A browser must never show a file written by a session as a page of this server.
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(path.rpartition('/')[2], safe='', errors='replace')}",
        "X-Content-Type-Options": "nosniff",
    }
    if if_none_match == tag:
        return Response(status_code=304, headers=headers)
    size: int = known["size"]
    start, end = 0, size
    if wanted and if_range in ("", tag) and (asked := _RANGE.fullmatch(wanted)):
        found = range_of(asked[1], asked[2], size)
        if found is None:
            return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{size}"})
        start, end = found
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    headers["Content-Length"] = str(end - start)
    return StreamingResponse(
        _parts(link, session, path, start, end, known),
        206 if "Content-Range" in headers else 200,
        headers,
        "application/octet-stream",
    )


def range_of(first: str, last: str, size: int) -> tuple[int, int] | None:
    """Return the start and the end of a range in a ``Range`` header; None if the range is empty.

    Args:
        first: The first byte; empty if `last` is the number of bytes at the end.
        last: The last byte; empty for all following bytes.
        size: Bytes of the file.
    """
    if not first:
        start, end = (max(0, size - int(last)), size) if last else (0, 0)
    else:
        start, end = int(first), min(int(last) + 1 if last else size, size)
    return (start, end) if start < end else None


async def _parts(
    link: SessionLink, session: str, path: str, start: int, end: int, known: dict[str, Any]
) -> AsyncIterator[bytes]:
    """Yield a file part by part. If it changes meanwhile, stop: the reader detects the missing bytes."""
    while start < end:
        part = await link.call(ReadPart(session, path, start, min(_PART, end - start)))
        if part["file"] != known or not part["data"]:
            raise FilesError(f"{path!r} changed while it was read", path=path)
        start += len(part["data"])
        yield part["data"]


@router.put(
    "/sessions/{session}/files/{path:file}",
    status_code=201,
    response_model=model_of(FileInfo),
    summary="Write a file",
    openapi_extra={
        "requestBody": {
            "required": False,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def write_file(request: Request, session: str, path: str, _: Run) -> Response:
    """Write the body to a file. The file appears when it is complete; missing folders are made."""
    return json_response(await write_in_parts(link_of(request).call, session, path, request.stream()), 201)


add(router, RemoveFile)
