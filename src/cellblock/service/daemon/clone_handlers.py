"""Handlers of operations on clones."""

from __future__ import annotations

from cellblock.model.clones import Applied, CloneChanges, Fetched
from cellblock.operations.clones import CloneApply, CloneDiff, CloneFetch
from cellblock.operations.data import Data, as_data
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.handlers import answers


@answers(CloneDiff)
async def diff(server: Server, request: CloneDiff) -> Data[CloneChanges]:
    return as_data(await (await server.sessions.live(request.session)).clone_diff())


@answers(CloneFetch)
async def fetch(server: Server, request: CloneFetch) -> Data[Fetched]:
    return as_data(await (await server.sessions.live(request.session)).clone_fetch())


@answers(CloneApply)
async def apply(server: Server, request: CloneApply) -> Data[Applied]:
    session = await server.sessions.live(request.session)
    return as_data(await session.clone_apply(three_way=request.three_way, allow_protected=request.allow_protected))
