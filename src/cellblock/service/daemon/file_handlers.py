"""Handlers of operations on files and packages of a session."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from cellblock.errors import InvalidInputError
from cellblock.model import CodeExecutionResult
from cellblock.operations.base import MAX_REQUEST
from cellblock.operations.data import Data, as_data
from cellblock.operations.files import (
    Install,
    ListFiles,
    MakeFolder,
    ReadFile,
    ReadPart,
    RemoveFile,
    RenameFile,
    StatFile,
    WatchFiles,
    WriteFile,
    WritePart,
)
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.handlers import answers, seconds
from cellblock.service.daemon.seen_files import SeenFiles

if TYPE_CHECKING:
    from cellblock.host.files import Files
    from cellblock.model.files import FileChange, FileInfo


@answers(ListFiles)
async def listed(server: Server, request: ListFiles) -> list[Data[FileInfo]]:
    files = await _files(server, request.session, request.path)
    return [as_data(info) for info in await files.list(request.path, recursive=request.recursive)]


@answers(ReadFile)
async def read(server: Server, request: ReadFile) -> bytes:
    return await (await _files(server, request.session, request.path)).read(request.path, max_bytes=request.max_bytes)


@answers(WriteFile, with_body=True)
async def write(server: Server, request: WriteFile, body: bytes) -> Data[FileInfo]:
    return as_data(await (await _files(server, request.session, request.path)).write(request.path, body))


@answers(ReadPart)
async def read_part(server: Server, request: ReadPart) -> dict[str, Any]:
    files = await _files(server, request.session, request.path)
    if not 0 <= request.offset < 2**63 or not 0 <= request.count <= MAX_REQUEST:
        raise InvalidInputError(f"a part has an offset, and at most {MAX_REQUEST} bytes")
    info, data = await files.read_part(request.path, request.offset, request.count)
    return {"file": as_data(info), "data": data}


@answers(WritePart, with_body=True)
async def write_part(server: Server, request: WritePart, body: bytes) -> Data[FileInfo] | None:
    files = await _files(server, request.session, request.path)
    upload = f"{request.session}/{request.upload}"
    if request.abort:
        await server.uploads.give_up(upload)
        return None
    written = await server.uploads.take(files, request.path, upload, body, more=request.more)
    return None if written is None else as_data(written)


@answers(StatFile)
async def stat(server: Server, request: StatFile) -> Data[FileInfo]:
    return as_data(await (await _files(server, request.session, request.path)).stat(request.path))


@answers(MakeFolder)
async def make_folder(server: Server, request: MakeFolder) -> bool:
    await (await _files(server, request.session, request.path)).mkdir(request.path)
    return True


@answers(RemoveFile)
async def remove(server: Server, request: RemoveFile) -> bool:
    await (await _files(server, request.session, request.path)).remove(request.path, recursive=request.recursive)
    return True


@answers(RenameFile)
async def rename(server: Server, request: RenameFile) -> bool:
    await SeenFiles((await server.sessions.live(request.session)).fs).rename(request.path, request.to)
    return True


@answers(WatchFiles)
async def watch(server: Server, request: WatchFiles) -> AsyncGenerator[Data[FileChange], None]:
    files = SeenFiles((await server.sessions.live(request.session)).fs)
    return _changes(files, request)


async def _changes(files: SeenFiles, request: WatchFiles) -> AsyncGenerator[Data[FileChange], None]:
    async with aclosing(files.watch(request.path, recursive=request.recursive)) as changes:
        async for change in changes:
            yield as_data(change)


@answers(Install)
async def install(server: Server, request: Install) -> Data[CodeExecutionResult]:
    session = await server.sessions.live(request.session)
    result = await session.install(*request.requirements, timeout=seconds(request.timeout))
    return cast("Data[CodeExecutionResult]", result.to_dict(raw=True))


async def _files(server: Server, session: str, path: str) -> Files | SeenFiles:
    """Return the file access for a path: from outside, or inside the session with its user's rights."""
    live = await server.sessions.live(session)
    return live.files if not path.startswith("/") or live.files.has(path) else SeenFiles(live.fs)
