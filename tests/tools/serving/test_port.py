"""The tool port goes from one kernel's listener to the next, and leaves nothing open."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest

from cellblock.tools.approvals.broker import Broker
from cellblock.tools.approvals.rules import Rules
from cellblock.tools.calling import pool
from cellblock.tools.calling.runner import ToolRunner, ToolRunnerError
from cellblock.tools.serving import listen
from cellblock.tools.serving.port import ToolPort
from cellblock.tools.serving.tool_app import session_app
from processes import descriptors, eventually
from tool_calls import Recorded


@pytest.fixture(autouse=True)
def no_connections_left(nothing_left_behind: None) -> Iterator[None]:
    yield
    pool.close()


@pytest.fixture
def servers() -> Recorded:
    return Recorded()


@pytest.fixture
async def port(servers: Recorded) -> AsyncIterator[ToolPort]:
    port = ToolPort(session_app(Broker(Rules(default="allow")), lambda name: partial(servers.call, name)))
    yield port
    await port.close()


def listener() -> tuple[socket.socket, int]:
    made = socket.create_server(("127.0.0.1", 0))
    return made, made.getsockname()[1]


async def call(number: int, tool: str = "read") -> object:
    return await ToolRunner("files", port=number).run(tool, {"n": number})


async def test_the_first_connection_and_all_others_are_served(port: ToolPort) -> None:
    made, number = listener()
    port.serve(made)
    assert await asyncio.gather(*(call(number) for _ in range(20))) == [f"read:{{'n': {number}}}"] * 20


async def test_a_listener_that_nobody_uses_is_closed_with_the_port(port: ToolPort) -> None:
    opened = len(descriptors())
    port.serve(listener()[0])
    await port.close()
    await port.close()  # twice is fine
    assert len(descriptors()) == opened


@pytest.mark.parametrize("used", [True, False])
async def test_listeners_are_served_together_until_one_is_stopped(port: ToolPort, used: bool) -> None:
    (first, number), (second, next_number) = listener(), listener()
    stop = port.serve(first)
    port.serve(second)
    assert await call(next_number)
    if used:
        assert await call(number)
    stop()
    stop()  # twice is fine
    assert await call(next_number)
    if used:
        with pytest.raises(ToolRunnerError):
            await call(number)
    else:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", number))


async def test_stopping_cuts_off_a_call(port: ToolPort, servers: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "_STOP", 0.1)
    made, number = listener()
    stop = port.serve(made)
    waiting = asyncio.create_task(call(number, "waits"))
    await eventually(lambda: servers.calls)
    stop()
    with pytest.raises(ToolRunnerError):
        await waiting
    assert servers.cancelled == 1


async def test_closing_cuts_off_a_call(port: ToolPort, servers: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "_STOP", 0.1)
    made, number = listener()
    port.serve(made)
    waiting = asyncio.create_task(call(number, "waits"))
    await eventually(lambda: servers.calls)
    await port.close()
    with pytest.raises(ToolRunnerError):
        await waiting
    assert servers.cancelled == 1


async def test_closing_while_the_first_connection_is_about_to_be_served(port: ToolPort) -> None:
    made, number = listener()
    port.serve(made)
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    body = json.dumps({"server_name": "files", "tool": "read"})
    writer.write(f"POST /run HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    await asyncio.sleep(0)
    await port.close()
    try:
        await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        pass
    writer.close()
