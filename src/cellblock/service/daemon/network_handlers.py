"""Handlers of operations on the network of a session."""

from __future__ import annotations

from cellblock.model.network import SessionNetwork
from cellblock.operations.data import Data, as_data
from cellblock.operations.network import ChangeNetwork, ShowNetwork
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.handlers import answers


@answers(ShowNetwork)
async def show(server: Server, request: ShowNetwork) -> Data[SessionNetwork]:
    return as_data((await server.sessions.live(request.session)).network)


@answers(ChangeNetwork)
async def change(server: Server, request: ChangeNetwork) -> Data[SessionNetwork]:
    session = await server.sessions.live(request.session)
    changed = await session.change_network(
        allow=request.allow,
        deny=request.deny,
        http=request.http,
        remove=request.remove,
        expect=None if request.expect < 0 else request.expect,
        by=f"person: {request.by}" if request.by else "person",
    )
    return as_data(changed)
