"""An approval channel in an application of the program's own, as programs written for ipybox have it with FastAPI."""

from __future__ import annotations

import asyncio
import typing
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from cellblock import ApprovalChannel, ApprovalClient, ApprovalRequest, StateError


@asynccontextmanager
async def served(channel: ApprovalChannel) -> AsyncIterator[int]:
    """Serve a channel; yield the port."""
    application = Starlette(routes=[WebSocketRoute("/approval", channel.connect)])
    server = uvicorn.Server(uvicorn.Config(application, "127.0.0.1", 0, log_level="error"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def decide(request: ApprovalRequest) -> None:
    """Accept what is good."""
    await (request.accept() if request.tool_args["good"] else request.reject())


async def test_an_approval_channel_is_served_by_an_application_of_the_program() -> None:
    channel = ApprovalChannel(approval_required=True, approval_timeout=5)
    assert typing.get_type_hints(channel.connect)["websocket"] is WebSocket, "FastAPI passes what this says"
    async with served(channel) as port:
        with pytest.raises(RuntimeError, match="no ApprovalClient is connected"):
            await channel.request("server", "tool", {})
        async with ApprovalClient(callback=decide, host="127.0.0.1", port=port):
            asked = [channel.request("server", "tool", {"good": good}) for good in (True, False)]
            assert await asyncio.gather(*asked) == [True, False]
            with pytest.raises(StateError, match="refused the approval client"):
                await ApprovalClient(callback=decide, host="127.0.0.1", port=port).connect()
        await channel.join()
        assert not channel.open


@pytest.mark.slow
async def test_a_message_that_is_too_long_or_not_text_ends_the_connection() -> None:
    channel = ApprovalChannel(approval_required=True)
    async with served(channel) as port:
        for message, code in (("x" * 65_537, 1009), (b"\xff", 1008)):
            async with connect(f"ws://127.0.0.1:{port}/approval") as websocket:
                await websocket.send(message)
                with pytest.raises(ConnectionClosed) as caught:
                    await websocket.recv()
                assert caught.value.rcvd is not None
                assert caught.value.rcvd.code == code
            await channel.join()


@pytest.mark.slow
async def test_a_closed_channel_closes_the_connection() -> None:
    channel = ApprovalChannel(approval_required=True)
    async with served(channel) as port, connect(f"ws://127.0.0.1:{port}/approval") as websocket:
        await asyncio.sleep(0)
        await channel.disconnect()
        with pytest.raises(ConnectionClosed):
            await websocket.recv()
        await channel.join()
        await channel.disconnect()
