"""The egress proxy: what clients and servers send it. Both are other processes: only the proxy's turns count."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator

from cellblock.walls.egress.gate import EgressLimits
from cellblock.walls.egress.live import LiveNetwork
from cellblock.walls.egress.rules import Rules
from cellblock.walls.proxy.proxy import EgressProxy

_SECONDS = 3

# A server that takes a request and then sends the same bytes for ever.
_SERVER = """
import socket, sys, threading
head, piece = (bytes.fromhex(text) for text in sys.argv[1:3])
listener = socket.create_server(("127.0.0.1", 0), backlog=512)
print(listener.getsockname()[1], flush=True)
def serve(client):
    try:
        client.recv(65536)
        client.sendall(head)
        data = piece * (262144 // len(piece)) if piece else b""
        while data:
            client.sendall(data)
        while client.recv(65536):
            pass
    except OSError:
        pass
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

# Clients that send a head, then the same bytes for ever, and drop what they get.
_CLIENT = """
import socket, sys, threading
port, count = int(sys.argv[1]), int(sys.argv[2])
head, piece = (bytes.fromhex(text) for text in sys.argv[3:5])
def drop(client):
    try:
        while client.recv(1 << 20):
            pass
    except OSError:
        pass
def run():
    while True:
        try:
            client = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=drop, args=(client,), daemon=True).start()
            client.sendall(head)
            data = piece * (262144 // len(piece)) if piece else b""
            while data:
                client.sendall(data)
            client.recv(1)
        except OSError:
            pass
threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
for thread in threads:
    thread.start()
threads[0].join()
"""


@contextlib.asynccontextmanager
async def _program(code: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def _attack(request: bytes, upward: bytes, response: bytes, downward: bytes, clients: int = 1) -> None:
    """Serve clients and a server for a while. ``PORT`` in the request is the server's."""
    async with _program(_SERVER, response.hex(), downward.hex()) as server:
        assert server.stdout is not None
        port = (await server.stdout.readline()).strip()
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        proxy_port = listener.getsockname()[1]
        rules = Rules.parse([f"127.0.0.1:{port.decode()}"])
        proxy = EgressProxy(listener, LiveNetwork(rules), on_denied=lambda _: None, limits=EgressLimits())
        await proxy.start()
        try:
            head = request.replace(b"PORT", port)
            async with _program(_CLIENT, str(proxy_port), str(clients), head.hex(), upward.hex()):
                await asyncio.sleep(_SECONDS)
        finally:
            await proxy.close()


_GET = b"GET http://127.0.0.1:PORT/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n"
_POST = b"POST http://127.0.0.1:PORT/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def case_tiny_chunks_from_the_server() -> None:
    """A response in chunks of one byte, without end."""
    await _attack(_GET, b"", _CHUNKED, b"1\r\nx\r\n")


async def case_tiny_chunks_from_the_client() -> None:
    """A request in chunks of one byte, without end."""
    await _attack(_POST, b"1\r\nx\r\n", b"", b"")


async def case_tiny_chunks_on_many_connections() -> None:
    """Both, on a hundred connections at a time."""
    await _attack(_POST, b"1\r\nx\r\n", _CHUNKED, b"1\r\nx\r\n", clients=100)


async def case_interim_responses() -> None:
    """Responses that announce a response, without end."""
    await _attack(_GET, b"", b"", b"HTTP/1.1 102 Processing\r\n\r\n")


async def case_connection_tokens() -> None:
    """Requests whose heads are as large as they may be, and name as many headers as they can."""
    names = b"".join(b"a%x:\r\n" % number for number in range(400))
    tokens = b"Connection: " + b"".join(b"b%x," % number for number in range(6000)) + b"\r\n"
    await _attack(_GET[:-2] + names + tokens + b"\r\n", b"", b"", b"")


async def case_many_headers() -> None:
    """Requests with as many headers as fit."""
    await _attack(_GET[:-2] + b"a:\r\n" * 16000 + b"\r\n", b"", b"", b"", clients=4)


async def case_many_headers_of_a_response() -> None:
    """Responses with as many headers as fit, and connections without end."""
    await _attack(_GET, b"", b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * 16000 + b"Content-Length: 0\r\n\r\n", b"", clients=4)


async def case_refused_names() -> None:
    """Requests for hosts that no rule names, as fast as they can be sent."""
    await _attack(b"CONNECT denied.example:443 HTTP/1.1\r\nHost: denied.example:443\r\n\r\n", b"", b"", b"", clients=20)


async def case_international_names() -> None:
    """Names that take long to fold, over SOCKS5."""
    name = "ß".encode() * 120
    await _attack(b"\x05\x01\x00\x05\x01\x00\x03" + bytes([len(name)]) + name + b"\x01\xbb", b"", b"", b"", clients=20)
