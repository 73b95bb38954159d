"""What the egress proxy costs: throughput and added latency on loopback, with and without it.

Run it with ``python bench/egress.py``. Client, proxy and server are three processes, as they are in use.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from cellblock.host.egress import EgressProxy, Rules

_PIECE = bytes(1024 * 1024)


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
        egress = EgressProxy(listener, Rules.parse([f"127.0.0.1:{target}"]), on_denied=lambda denial: None)
        await egress.start()
        pipe.send(listener.getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(run())


def started(target: Callable[..., None], *values: int) -> tuple[multiprocessing.Process, int]:
    """Start one of the above; return its process and its port."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=target, args=(theirs, *values), daemon=True)
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


def measure(size: int, rounds: int, count: int) -> dict[str, dict[str, float]]:
    """Measure all ways in turns, so that a busy machine hurts them alike."""
    _server, port = started(serve)
    _proxy, via = started(proxy, port)
    ways = [("direct", None, "connect"), ("CONNECT", via, "connect"), ("SOCKS5", via, "socks5")]
    ways += [("direct HTTP", None, "http"), ("plain HTTP", via, "http")]
    rates: dict[str, list[float]] = {name: [] for name, *_ in ways}
    times: dict[str, list[float]] = {name: [] for name, *_ in ways}
    for _ in range(rounds):
        for name, through, how in ways:
            rates[name].append(size / transfer(port, through, how, size) / 1e6)
    for _ in range(count):
        for name, through, how in ways:
            times[name].append(transfer(port, through, how, 1) * 1e3)
    return {
        name: {
            "mb_per_s": round(statistics.median(rates[name]), 1),
            "p50_ms": round(statistics.median(times[name]), 3),
            "p95_ms": round(statistics.quantiles(times[name], n=20)[-1], 3),
        }
        for name in rates
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=500_000_000, help="bytes for each transfer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=500, help="connections for the latency")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.size, options.rounds, options.count)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, figures in found.items():
        base = found["direct HTTP" if "HTTP" in name else "direct"]
        added = figures["p50_ms"] - base["p50_ms"]
        rate, median, late = figures["mb_per_s"], figures["p50_ms"], figures["p95_ms"]
        print(
            f"{name:12} {rate:8.0f} MB/s   connect + first byte p50 {median:.2f} ms, p95 {late:.2f} ms, added {added:+.2f} ms"
        )


if __name__ == "__main__":
    main()
