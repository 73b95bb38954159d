"""Ports: started once, stopped completely, and none with more than its share of connections."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cellblock.tools.serving import listen
from cellblock.tools.serving.http import Request
from cellblock.tools.serving.listen import MAX_CONNECTIONS, MAX_OF_ALL, RESERVED, HttpServer
from processes import eventually

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


async def app(request: Request) -> tuple[int, bytes]:
    if request.path == "/never":
        await asyncio.Event().wait()
    return 200, await request.body()


@asynccontextmanager
async def served() -> AsyncIterator[tuple[HttpServer, int]]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(app, [listener])
    await server.start()
    try:
        yield server, listener.getsockname()[1]
    finally:
        await server.stop()


async def test_stopping_cancels_a_request_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "_STOP", 0.05)
    async with served() as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n")
        await eventually(lambda: server._port.tasks)
        await server.stop()
        assert b"200" not in await reader.read()
        writer.close()


async def test_a_server_that_was_never_started_stops_and_joins_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HttpServer(app, [listener])
        await server.join()
        await server.stop()


class Connections:
    """A port that has so many connections."""

    def __init__(self, count: int) -> None:
        self.connections = range(count)


@pytest.mark.parametrize(
    ("own", "others", "soft", "full"),
    [
        (MAX_CONNECTIONS - 1, 0, 100_000, False),
        (MAX_CONNECTIONS, 0, 100_000, True),
        (RESERVED, MAX_OF_ALL - RESERVED - 1, 100_000, False),
        (RESERVED, MAX_OF_ALL - RESERVED, 100_000, True),
        (RESERVED - 1, 10 * MAX_OF_ALL, 100_000, False),  # what others hold open leaves each its reserve
        (RESERVED, 240, 1024, True),  # a quarter of the descriptors
        (RESERVED, 239, 1024, False),
        (RESERVED, MAX_OF_ALL - RESERVED - 1, resource.RLIM_INFINITY, False),
    ],
)
def test_a_port_has_its_share_and_no_more(
    monkeypatch: pytest.MonkeyPatch, own: int, others: int, soft: int, full: bool
) -> None:
    port = Connections(own)
    monkeypatch.setattr(listen, "_ports", [port, Connections(others)])
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (soft, soft))
    assert listen._full(port) is full  # type: ignore[arg-type]
