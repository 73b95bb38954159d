"""Attack 30: too many connections, slow ones, large heads, silence. The host stays responsive."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Sequence

import pytest

from cellblock.walls.egress.gate import EgressLimits
from cellblock.walls.egress.names import Address
from processes import descriptors, eventually

from .conftest import Starter, port_of, tunnel

FLOOD = """
import os, resource, selectors, socket, sys
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
made = []
for _ in range(10_000):
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex(("127.0.0.1", int(sys.argv[1])))
    made.append(client)
print(len(made), flush=True)
sys.stdin.read()
os._exit(0)
"""


async def test_30_more_connections_than_allowed(start: Starter) -> None:
    """Those beyond the limit get a 503 that says so; those that are served go on; and when one ends there is room."""
    port = await start.echo()
    running = await start.proxy(f"127.0.0.1:{port}", limits=EgressLimits(connections=3))
    served = [await tunnel(running, port, "127.0.0.1") for _ in range(3)]
    answer = await running.ask(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 503 Too Many Connections\r\n")
    assert answer.endswith(b"cellblock: this session has reached its limit of 3 connections; close some\n")
    assert await running.socks_name(b"127.0.0.1", port) == 1
    for reader, writer in served:
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here"
    served.pop()[1].close()
    await eventually(lambda: running.connections == 2)
    assert await running.connect_status(f"127.0.0.1:{port}") == 200
    for _, writer in served:
        writer.close()


@pytest.mark.slow
async def test_30_ten_thousand_connections(start: Starter) -> None:
    """They cost the host a bounded number of descriptors, and a neighbour is served meanwhile."""
    port = await start.echo()
    running = await start.proxy(f"127.0.0.1:{port}", limits=EgressLimits(header_seconds=0.5), backlog=4096)
    neighbour = await start.proxy(f"127.0.0.1:{port}")
    before = len(descriptors())
    flood = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FLOOD, str(running.port), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert flood.stdin is not None
    assert flood.stdout is not None
    served, most, made = 0, 0, asyncio.create_task(flood.stdout.readline())
    while not made.done():
        assert await neighbour.connect_status(f"127.0.0.1:{port}") == 200
        served += 1
        most = max(most, len(descriptors()))
    assert await made == b"10000\n"
    assert served > 1
    assert most - before < 256 + 16 + 32
    flood.stdin.close()
    await flood.wait()
    await eventually(lambda: running.connections < 256, timeout=30)
    assert await running.connect_status(f"127.0.0.1:{port}") == 200


async def test_30_slow_loris(start: Starter) -> None:
    running = await start.proxy("*", limits=EgressLimits(header_seconds=0.15))
    slow = []
    for first in (b"GET http://a.test/ HTTP/1.1\r\nX: ", b"\x05\x01", b""):
        reader, writer = await running.connect()
        writer.write(first)
        slow.append((reader, writer, first))

    async def drip() -> None:
        while True:
            slow[0][1].write(b"x")
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    try:
        answers = [await asyncio.wait_for(reader.read(), 5) for reader, _, _ in slow]
    finally:
        dripping.cancel()
    assert answers[0].startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert answers[0].endswith(b"the head of the request did not come within 0.15 s\n")
    assert answers[1:] == [b"", b""]
    for _, writer, _ in slow:
        writer.close()


async def test_30_endless_header(start: Starter) -> None:
    """A gigabyte of header is refused after as much as is allowed, and is not kept."""
    running = await start.proxy("*", limits=EgressLimits(header_bytes=10_000))
    reader, writer = await running.connect()
    writer.write(b"GET http://a.test/ HTTP/1.1\r\nX: " + b"x" * 100_000)
    assert (await reader.readuntil(b"\r\n")) == b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    writer.transport.abort()
    answer = await running.ask(b"GET http://a.test/ HTTP/1.1\r\n" + b"X: y\r\n" * 5_000)
    assert not answer or answer.startswith(b"HTTP/1.1 431 ")


async def test_30_endless_response_header(start: Starter) -> None:
    port, _ = await start.http(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000)
    running = await start.proxy(f"127.0.0.1:{port}", limits=EgressLimits(header_bytes=10_000))
    request = f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    assert (await running.ask(request)).startswith(b"HTTP/1.1 502 Bad Gateway\r\n")


async def test_silence_ends_a_tunnel(start: Starter) -> None:
    port = await start.echo()
    running = await start.proxy(f"127.0.0.1:{port}", limits=EgressLimits(idle_seconds=0.1))
    reader, writer = await tunnel(running, port, "127.0.0.1")
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 5)
    writer.close()


async def test_silence_of_a_server(start: Starter) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    port = await start.server(silent)
    running = await start.proxy(f"127.0.0.1:{port}", limits=EgressLimits(idle_seconds=0.1))
    answer = await running.ask(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 504 Gateway Timeout\r\n")
    assert answer.endswith(b"cellblock: the server was silent for 0.1 s\n")


async def test_silence_of_a_kept_connection(start: Starter) -> None:
    port, _ = await start.http()
    running = await start.proxy(f"127.0.0.1:{port}", limits=EgressLimits(idle_seconds=0.1))
    answer = await running.ask(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    assert answer.endswith(b"hello")


@pytest.mark.slow
async def test_a_response_that_goes_on_is_not_idle(start: Starter) -> None:
    """The limit is on silence, not on how long a download takes."""

    async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n")
        for _ in range(20):
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.02)

    port = await start.server(dripping)
    running = await start.proxy(f"127.0.0.1:{port}", limits=EgressLimits(idle_seconds=0.2))
    request = f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
    assert (await running.ask(request.encode())).endswith(b"." * 20)


async def test_connecting_takes_too_long(start: Starter) -> None:
    async def never(address: Address, port: int) -> socket.socket:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    running = await start.proxy("a.test", names={"a.test": ["1.1.1.1"]}, dial=never, limits=EgressLimits(connect_seconds=0.1))
    answer = await running.ask(b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 504 Gateway Timeout\r\n")
    assert answer.endswith(b"cellblock: a.test:443 could not be reached within 0.1 s\n")
    assert await running.socks_name(b"a.test", 443) == 6


async def test_a_dead_first_address_leaves_time_for_the_second(start: Starter) -> None:
    port = await start.echo()

    async def dial(address: Address, number: int) -> socket.socket:
        if str(address) == "127.0.0.2":
            await asyncio.get_running_loop().create_future()
        made = socket.create_connection((str(address), number))
        made.setblocking(False)
        return made

    names = {"a.test": ["127.0.0.2", "127.0.0.1"]}
    limits = EgressLimits(connect_seconds=0.4)
    patterns = [f"a.test:{port}", f"127.0.0.1:{port}", f"127.0.0.2:{port}"]
    running = await start.proxy(*patterns, names=names, dial=dial, limits=limits)
    assert await running.connect_status(f"a.test:{port}") == 200


async def test_slow_lookups_are_few(start: Starter) -> None:
    """However many clients ask and give up, a session has four lookups under way at most."""
    under_way, most = 0, 0
    release = asyncio.Event()

    async def slow(name: str) -> Sequence[str]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await release.wait()
        under_way -= 1
        return []

    running = await start.proxy("*", resolve=slow, limits=EgressLimits(connect_seconds=0.1))
    statuses = await asyncio.gather(*(running.connect_status(f"a{index}.test:443") for index in range(20)))
    assert set(statuses) == {504}
    assert (most, under_way) == (4, 4)
    release.set()
    await eventually(lambda: under_way == 0)
    assert await running.connect_status("b.test:443") == 502


async def test_the_default_lookup_runs_beside_the_loop() -> None:
    from cellblock.walls.egress.gate import resolve

    assert "127.0.0.1" in await resolve("localhost")
    assert any(thread.name.startswith("cellblock-lookup") for thread in threading.enumerate())
    with pytest.raises(OSError, match="not known"):
        await resolve("x" * 63 + ".invalid")


async def test_no_descriptors_left(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients wait while this process has no descriptor for them, and are served when it has."""
    running = await start.proxy("*")
    accept, failures = socket.socket.accept, iter([True, True, False])

    def failing(made: socket.socket) -> tuple[socket.socket, object]:
        if port_of(made) == running.port and next(failures, False):
            raise OSError(24, "Too many open files")
        return accept(made)

    monkeypatch.setattr(socket.socket, "accept", failing)
    assert await running.connect_status("127.0.0.1:22") == 403
    assert next(failures, None) is None
