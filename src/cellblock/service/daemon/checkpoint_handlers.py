"""Handlers of operations on checkpoints and branches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cellblock.errors import UnsupportedError
from cellblock.model.checkpoints import Changes, CheckpointRecord, FileVersions, Restored, StateChanges, TrashEntry, Undone
from cellblock.model.sessions import OWN_KERNEL, SessionRecord
from cellblock.operations.checkpoints import (
    Adopt,
    Checkpoints,
    Diff,
    DropCheckpoint,
    Fork,
    MakeCheckpoint,
    Redo,
    Restore,
    RestoreTrash,
    Trash,
    Undo,
    VersionsOfFile,
)
from cellblock.operations.data import Data, as_data
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.handlers import answers
from cellblock.service.named import named_checkpoints
from cellblock.wire.packed import Packed, pack

if TYPE_CHECKING:
    from cellblock.host import Session
    from cellblock.host.checkpoints.checkpoint import Checkpoint


@answers(MakeCheckpoint)
async def make(server: Server, request: MakeCheckpoint) -> Data[CheckpointRecord]:
    session = await _live(server, request.session)
    made = await session.checkpoint(request.name, files=request.files)  # type: ignore[arg-type]  # it checks it
    return as_data(made.record)


@answers(Checkpoints)
async def listed(server: Server, request: Checkpoints) -> list[Data[CheckpointRecord]]:
    return [as_data(checkpoint.record) for checkpoint in (await _live(server, request.session)).checkpoints()]


@answers(Restore)
async def restore(server: Server, request: Restore) -> Data[Restored] | Packed:
    session, checkpoint = await _found(server, request)
    async with server.sessions.find(request.session).going_back():
        restored = await session.restore(checkpoint, processes=request.processes)  # type: ignore[arg-type]  # it checks it
    return await asyncio.to_thread(lambda: pack({**checkpoint.record.to_dict(), "changes": restored.to_dict()}))


@answers(DropCheckpoint)
async def drop(server: Server, request: DropCheckpoint) -> bool:
    _, checkpoint = await _found(server, request)
    await checkpoint.drop()
    return True


@answers(Undo)
async def undo(server: Server, request: Undo) -> Data[Undone]:
    session = await _live(server, request.session)
    async with server.sessions.find(request.session).going_back():
        undone = await session.undo(request.count, partial=request.partial, processes=request.processes)  # type: ignore[arg-type]
    return as_data(undone)


@answers(Redo)
async def redo(server: Server, request: Redo) -> Data[Undone]:
    session = await _live(server, request.session)
    async with server.sessions.find(request.session).going_back():
        return as_data(await session.redo())


@answers(Trash)
async def trash(server: Server, request: Trash) -> list[Data[TrashEntry]]:
    return [as_data(entry) for entry in await (await _live(server, request.session)).trash()]


@answers(RestoreTrash)
async def restore_trash(server: Server, request: RestoreTrash) -> Data[Changes] | Packed:
    changes = await (await _live(server, request.session)).restore_trash(request.path, request.entry)
    return await asyncio.to_thread(lambda: pack(changes.to_dict()))


@answers(Diff)
async def diff(server: Server, request: Diff) -> Data[StateChanges] | Packed:
    session, checkpoint = await _found(server, request)
    changes = await session.diff(checkpoint, _until(server, session, request))
    return await asyncio.to_thread(lambda: pack(changes.to_dict()))  # it can name a hundred thousand files


@answers(VersionsOfFile)
async def file_versions(server: Server, request: VersionsOfFile) -> Data[FileVersions]:
    session, checkpoint = await _found(server, request)
    return as_data(await session.file_versions(request.path, checkpoint, _until(server, session, request)))


@answers(Fork)
async def fork(server: Server, request: Fork) -> list[Data[SessionRecord]]:
    with server.placed(request.grant, request.names):
        await _live(server, request.session)
        made = await named_checkpoints.fork(
            server.sessions,
            request.session,
            request.names,
            files=request.files or None,  # type: ignore[arg-type]  # it checks it
            seeds=request.seeds or None,
            same_random_state=request.same_random_state,
        )
    return [as_data(record) for record in made]


@answers(Adopt)
async def adopt(server: Server, request: Adopt) -> Data[Changes] | Packed:
    await _live(server, request.session)
    adopted = await named_checkpoints.adopt(server.sessions, request.session, request.branch)
    return await asyncio.to_thread(lambda: pack(adopted.to_dict()))


async def _live(server: Server, session: str) -> Session:
    """Return the running session.

    Raises:
        UnsupportedError: The session has another kernel type.
    """
    kernel_type = server.sessions.find(session).record.kernel_type
    if kernel_type != OWN_KERNEL:
        raise UnsupportedError(f"only Python sessions have checkpoints, and the kernel type of this one is {kernel_type!r}")
    return await server.sessions.live(session)


async def _found(server: Server, request: Restore | DropCheckpoint | Diff | VersionsOfFile) -> tuple[Session, Checkpoint]:
    """Return the running session and the requested checkpoint."""
    label = server.sessions.find(request.session).record.name
    session = await _live(server, request.session)
    return session, named_checkpoints.find(session, label, request.checkpoint)


def _until(server: Server, session: Session, request: Diff | VersionsOfFile) -> Checkpoint | None:
    """Return the second checkpoint of the request; None for the current state."""
    label = server.sessions.find(request.session).record.name
    return named_checkpoints.find(session, label, request.until) if request.until else None
