"""What a turnkey costs: time per request on a kept connection, compared with a tunnel and no proxy, and its memory.

Client, proxy, turnkey and server are processes of their own, as they are in use.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import ssl
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from bench.cases import Series
from bench.systems import System
from cellblock.common.secret import Secret
from cellblock.walls.egress.judge import RequestJudge
from cellblock.walls.egress.live import LiveNetwork
from cellblock.walls.egress.rules import Rules
from cellblock.walls.keys.authority import authority_certificate, leaf
from cellblock.walls.keys.bindings import bind
from cellblock.walls.keys.session_keys import SessionKeys
from cellblock.walls.keys.template_process import Template
from cellblock.walls.proxy.proxy import EgressProxy

_SEED = bytes(32)
_SPAWNED = multiprocessing.get_context("spawn")  # a fork would be within this process's event loop
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def serve(pipe: Connection, directory: str) -> None:
    """Answer each request on each connection, one connection after the other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{directory}/leaf.pem")
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    pipe.send(listener.getsockname()[1])
    while True:
        client, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with context.wrap_socket(client, server_side=True) as tls:
            while tls.recv(65536):
                tls.sendall(_ANSWER)


def proxy(pipe: Connection, directory: str, opened: int, tunnelled: int) -> None:
    """Serve a proxy that opens one of two servers; answer with its port, the placeholder and, when asked, the memory."""
    os.environ |= {"SSL_CERT_FILE": f"{directory}/roots.pem", "BENCH_KEY": "bench-0123456789"}

    async def run() -> None:
        secret = Secret.from_env("BENCH_KEY", hosts=[f"127.0.0.1:{opened}"])
        keys = SessionKeys((bind("BENCH_KEY", secret),))
        await keys.enter(f"{directory}/trusted.pem")
        keys.trust.make(f"{directory}/trusted.pem")
        network = LiveNetwork(Rules.parse([f"127.0.0.1:{opened}", f"127.0.0.1:{tunnelled}"]))
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        judge = RequestJudge(network, (), None, on_denied=lambda _: None)
        server = EgressProxy(listener, network, on_denied=lambda _: None, keys=keys, judge=judge)
        await server.start()
        pipe.send((listener.getsockname()[1], keys.environment["BENCH_KEY"]))
        await asyncio.to_thread(pipe.recv)
        pipe.send(memory())
        await asyncio.to_thread(pipe.recv)

    asyncio.run(run())


def memory() -> tuple[float, float]:
    """Return the own memory of the template and of its turnkey, in MB."""
    template = Template.current().pid
    (turnkey,) = Path(f"/proc/{template}/task/{template}/children").read_text().split()
    return of_process(str(template)), of_process(turnkey)


def of_process(pid: str) -> float:
    """Return the memory that a process does not share, in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1000


def ask(client: ssl.SSLSocket, port: int, placeholder: str) -> float:
    """Send a request, and return the seconds until its response."""
    began = time.perf_counter()
    client.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {placeholder}\r\n\r\n".encode())
    data = b""
    while not data.endswith((b"ok", b"0\r\n\r\n")):
        data += client.recv(65536)
    assert data.startswith(b"HTTP/1.1 200 ")
    return time.perf_counter() - began


async def keys(_system: System, *, n: int) -> Series:
    """Send requests through the turnkey, a tunnel and no proxy in turns, so that a busy machine hurts them alike."""
    series: Series = {}
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "roots.pem").write_bytes(authority_certificate(_SEED))
        Path(directory, "leaf.pem").write_bytes(leaf(_SEED, ["127.0.0.1"]))
        started, ports = [], []
        for _ in range(3):
            ours, theirs = _SPAWNED.Pipe()
            started.append(_SPAWNED.Process(target=serve, args=(theirs, directory), daemon=True))
            started[-1].start()
            ports.append(ours.recv())
        pipe, theirs = _SPAWNED.Pipe()
        started.append(_SPAWNED.Process(target=proxy, args=(theirs, directory, *ports[:2])))
        started[-1].start()
        via, placeholder = pipe.recv()
        context = ssl.create_default_context(cafile=f"{directory}/trusted.pem")
        clients = {}
        for name, port in zip(("turnkey", "tunnel", "no proxy"), ports, strict=True):
            plain = socket.create_connection(("127.0.0.1", port if name == "no proxy" else via))
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if name != "no proxy":
                plain.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (port, port))
                assert b" 200 " in plain.recv(4096)
            clients[name] = (context.wrap_socket(plain, server_hostname="127.0.0.1"), port)
        for _ in range(n):
            for name, (client, port) in clients.items():
                series.setdefault(f"{name}: ms", []).append(ask(client, port, placeholder) * 1e3)
        pipe.send("memory")
        series["template: MB"], series["turnkey: MB"] = ([figure] for figure in pipe.recv())
        for client, _ in clients.values():
            client.close()
        for process in started:
            process.terminate()
            process.join()
    series["added ms"] = [statistics.median(series["turnkey: ms"]) - statistics.median(series["tunnel: ms"])]
    return series
