"""What the egress proxy costs: throughput and added time per connection on loopback.

Client, proxy and server are three processes, as they are in use.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from bench.cases import Series
from bench.systems import System
from cellblock.walls.egress.live import LiveNetwork
from cellblock.walls.egress.rules import Rules
from cellblock.walls.proxy.proxy import EgressProxy

_PIECE = bytes(1024 * 1024)
_SPAWNED = multiprocessing.get_context("spawn")  # a fork would be within this process's event loop


def serve(pipe: Connection) -> None:
    """Answer each connection with as many bytes as its first line asks for: as HTTP, if that is a request."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    pipe.send(listener.getsockname()[1])
    while True:
        client, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with client:
            asked = client.recv(65536)
            if not asked:
                continue
            path = asked.split()[1] if asked.startswith(b"GET ") else asked
            left = int(path.strip(b"/"))
            if asked.startswith(b"GET "):
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % left)
            try:
                while left:
                    left -= client.send(_PIECE[:left])
            except ConnectionError:
                continue


def proxy(pipe: Connection, target: int) -> None:
    """Run a proxy that may reach the server."""

    async def run() -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        egress = EgressProxy(listener, LiveNetwork(Rules.parse([f"127.0.0.1:{target}"])), on_denied=lambda denial: None)
        await egress.start()
        pipe.send(listener.getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(run())


def started(target: Callable[..., None], *values: int) -> tuple[SpawnProcess, int]:
    """Start one of the above; return its process and its port."""
    ours, theirs = _SPAWNED.Pipe()
    process = _SPAWNED.Process(target=target, args=(theirs, *values), daemon=True)
    process.start()
    return process, ours.recv()


def connected(port: int, via: int | None, how: str) -> socket.socket:
    """Return a connection to the server, through the proxy where there is one."""
    client = socket.create_connection(("127.0.0.1", via or port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if via and how == "connect":
        client.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (port, port))
        assert b" 200 " in client.recv(4096)
    if via and how == "socks5":
        client.sendall(b"\x05\x01\x00")
        assert client.recv(2) == b"\x05\x00"
        client.sendall(b"\x05\x01\x00\x01\x7f\x00\x00\x01" + port.to_bytes(2, "big"))
        assert client.recv(10)[1] == 0
    return client


def transfer(port: int, via: int | None, how: str, size: int) -> float:
    """Fetch bytes on a connection of their own; return the seconds that it took."""
    began = time.perf_counter()
    buffer = bytearray(1024 * 1024)
    with connected(port, via, how) as client:
        if how == "http":
            target = f"http://127.0.0.1:{port}/{size}" if via else f"/{size}"
            client.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(65536)
            size -= len(head.partition(b"\r\n\r\n")[2])
        else:
            client.sendall(b"%d\n" % size)
        while size > 0:
            size -= client.recv_into(buffer) or size + 1
        assert size == 0
    return time.perf_counter() - began


async def egress(_system: System, *, n: int, size: int, transfers: int) -> Series:
    """Fetch much, and fetch a byte on each of many connections; all ways in turns, so that a busy machine hurts them alike."""
    server, port = started(serve)
    proxied, via = started(proxy, port)
    ways = [("direct", None, "connect"), ("CONNECT", via, "connect"), ("SOCKS5", via, "socks5")]
    ways += [("direct HTTP", None, "http"), ("plain HTTP", via, "http")]
    series: Series = {}
    for _ in range(transfers):
        for name, through, how in ways:
            series.setdefault(f"{name}: MB/s", []).append(size / transfer(port, through, how, size) / 1e6)
    for _ in range(n):
        for name, through, how in ways:
            series.setdefault(f"{name}: ms", []).append(transfer(port, through, how, 1) * 1e3)
    for process in (proxied, server):
        process.terminate()
        process.join()
    bases = {"CONNECT": "direct", "SOCKS5": "direct", "plain HTTP": "direct HTTP"}
    for name, base in bases.items():
        added = statistics.median(series[f"{name}: ms"]) - statistics.median(series[f"{base}: ms"])
        series[f"{name}: added ms"] = [added]
    return series
