"""Our own requests beside the SDK's: who gets which message, and what ends a request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from cellblock.tools.mcp import jsonrpc
from cellblock.tools.mcp.jsonrpc import Requests
from processes import eventually


class Server:
    """The other end of a connection, and the SDK's end of ours."""

    def __init__(self) -> None:
        self._say, reader = anyio.create_memory_object_stream[SessionMessage | Exception](10)
        writer, self._hear = anyio.create_memory_object_stream[SessionMessage](10)
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.ended = 0
        self._streams = (self._hear, writer, reader)
        self.requests = Requests(reader, writer, self._on_end, self._on_notification)
        self.sdk: list[SessionMessage | Exception] = []
        self._reading = asyncio.create_task(self._read())

    def _on_end(self, reason: str) -> None:
        self.ended += 1

    def _on_notification(self, method: str, params: dict[str, Any]) -> bool:
        self.heard.append((method, params))
        return method != "for/the/sdk"

    async def _read(self) -> None:
        with contextlib.suppress(anyio.ClosedResourceError):
            async for message in self.requests:
                self.sdk.append(message)

    async def next(self) -> Any:
        return (await self._hear.receive()).message

    async def say(self, message: Any) -> None:
        await self._say.send(SessionMessage(message))

    async def notify(self, method: str, **params: Any) -> None:
        await self.say(JSONRPCNotification(jsonrpc="2.0", method=method, params=params))

    async def answer(self, number: Any, **result: Any) -> None:
        await self.say(JSONRPCResponse(jsonrpc="2.0", id=number, result=result))

    async def leave(self) -> None:
        await self._say.aclose()
        await self._reading

    async def close(self) -> None:
        await self._say.aclose()
        await asyncio.wait([self._reading])
        for stream in self._streams:
            stream.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    yield server
    await server.close()


async def test_an_id_that_comes_back_as_text_is_understood(server: Server) -> None:
    call = asyncio.create_task(server.requests.send("m", {}))
    await server.answer(str((await server.next()).id), ok=True)
    assert await call == {"ok": True}


async def test_what_is_not_ours_goes_to_the_sdk(server: Server) -> None:
    await server.answer(1, sdk=True)
    await server.say(JSONRPCRequest(jsonrpc="2.0", id=5, method="roots/list", params={}))
    await server.notify("for/the/sdk")
    await server.notify("notifications/message", level="info", data="x")
    await server.notify("notifications/progress", progressToken=12345, progress=1)  # of no request of ours
    await server.leave()
    assert [type(message.message).__name__ for message in server.sdk if isinstance(message, SessionMessage)] == [
        "JSONRPCResponse",
        "JSONRPCRequest",
        "JSONRPCNotification",
    ]
    assert [method for method, _ in server.heard] == ["for/the/sdk", "notifications/message", "notifications/progress"]


async def test_a_second_answer_is_of_nobody(server: Server) -> None:
    call = asyncio.create_task(server.requests.send("m", {}))
    number = (await server.next()).id
    await server.answer(number, n=1)
    await server.answer(number, n=2)
    assert await call == {"n": 1}


async def test_progress_reaches_its_own_request_with_what_is_valid_in_it(server: Server) -> None:
    told: list[tuple[Any, ...]] = []
    call = asyncio.create_task(server.requests.send("m", {"a": 1}, lambda *said: told.append(said)))
    request = await server.next()
    token = request.params["_meta"]["progressToken"]
    assert request.params["a"] == 1
    await server.notify("notifications/progress", progressToken=token, progress=1, total=2, message="half")
    await server.notify("notifications/progress", progressToken=token, progress=2, total="many", message=3)
    await server.notify("notifications/progress", progressToken=token, progress="all")
    await server.answer(request.id)
    await call
    assert told == [(1.0, 2.0, "half"), (2.0, None, None)]


async def test_who_fails_to_listen_ends_nothing(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_said: object) -> None:
        raise ZeroDivisionError

    call = asyncio.create_task(server.requests.send("m", {}, fail))
    request = await server.next()
    await server.notify("notifications/progress", progressToken=request.id, progress=1)
    await server.answer(request.id, ok=True)
    assert await call == {"ok": True}
    assert "failed" in caplog.text


async def test_a_server_that_asks_and_reads_no_answer_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonrpc, "_MAX_PENDING", 2)
    for number in range(4):  # each is answered before the next
        await server.say(JSONRPCRequest(jsonrpc="2.0", id=number, method="ping", params={}))
        await server.requests.answer(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=number, result={})))
        await server.next()
    await eventually(lambda: len(server.sdk) == 4)
    for number in range(3):
        await server.say(JSONRPCRequest(jsonrpc="2.0", id=number, method="ping", params={}))
    await eventually(lambda: server.ended)
    assert len(server.sdk) == 6
