"""A session as a file: saved, loaded, exported as a notebook; and its variables.

The daemon, a process of the same user, writes and reads files by path in a directory of the gateway's own. For files at
URLs, the daemon uses its own credentials, which takes the scope ``admin``.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO, Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from cellblock.errors import StoreError
from cellblock.fronts.gateway.access import link_of
from cellblock.fronts.gateway.answers import json_response
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.models import model_of
from cellblock.fronts.gateway.session_routes import Read, Run
from cellblock.model.saving import LoadReport
from cellblock.operations.saving import Export, Load, Save
from cellblock.operations.sessions import Status

router = APIRouter(prefix="/sessions/{session}", tags=["Sessions"], route_class=CheckedRoute)

_PIECE = 1024 * 1024
_FILE = {"description": "The file.", "content": {"application/octet-stream": {}}}

Files = Annotated[bool, Query(description="Include the files of the workspace.")]


@router.post("/save", response_class=Response, summary="Save a session", responses={200: _FILE})
async def save(request: Request, session: str, _: Run, files: Files = False) -> Response:
    """Save a session. The answer is the file; its `manifest.json` says what could not be kept, and the headers how much."""
    async with _directory() as directory:
        report = await link_of(request).call(Save(session, os.path.join(directory, "file"), files))
        counts = {"Cellblock-Saved": str(len(report["saved"])), "Cellblock-Left-Out": str(len(report["left_out"]))}
        return await _sent(request, session, directory, ".cellblock", counts)


@router.post(
    "/load",
    response_model=model_of(LoadReport),
    summary="Load a saved session",
    openapi_extra={
        "requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def load(request: Request, session: str, _: Run, files: Files = False) -> Response:
    """Continue a saved session, which is the body, in a session, which gets a fresh kernel."""
    async with _directory() as directory:
        path = os.path.join(directory, "file")
        try:
            with await asyncio.to_thread(open, path, "xb") as file:
                async for piece in request.stream():
                    await asyncio.to_thread(file.write, piece)
        except OSError as error:
            raise StoreError(f"the gateway cannot store the file: {error.strerror or error}") from error
        return json_response(await link_of(request).call(Load(session, path, files)))


@router.get("/export", response_class=Response, summary="Export a session", responses={200: _FILE})
async def export(
    request: Request,
    session: str,
    _: Read,
    kind: Annotated[Literal["ipynb", "py"], Query(alias="format", description="A notebook or a script.")] = "ipynb",
) -> Response:
    """Return the cells of a session and what they showed as a notebook that Jupyter opens, or the code as a script."""
    async with _directory() as directory:
        await link_of(request).call(Export(session, os.path.join(directory, f"file.{kind}")))
        return await _sent(request, session, directory, f".{kind}", {})


@asynccontextmanager
async def _directory() -> AsyncIterator[str]:
    directory = await asyncio.to_thread(tempfile.mkdtemp, prefix="cellblock-")
    try:
        yield directory
    finally:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


async def _sent(request: Request, session: str, directory: str, suffix: str, headers: dict[str, str]) -> Response:
    """Return the only file of a directory as an answer. The open file can be read after the directory was removed."""
    name = (await link_of(request).call(Status(session)))["name"]
    file = await asyncio.to_thread(_opened, directory)
    headers |= {
        "Content-Length": str(os.fstat(file.fileno()).st_size),
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name + suffix, safe='')}",
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(_pieces(file), 200, headers, "application/octet-stream")


def _opened(directory: str) -> IO[bytes]:
    (name,) = os.listdir(directory)
    return open(os.path.join(directory, name), "rb")


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        while piece := await asyncio.to_thread(file.read, _PIECE):
            yield piece
