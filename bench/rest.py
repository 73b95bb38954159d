"""Executions over HTTP: by one client on a kept connection, and by many at once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bench.cases import Series, ms
from bench.systems import System

SERVE = {
    "cellblock": """
from cellblock.fronts.gateway.gateway_options import GatewayOptions
from cellblock.fronts.gateway.serve import serve
serve(port={port}, options=GatewayOptions(token="bench"))
""",
    "kernelbox": "import uvicorn\nuvicorn.run('kernelbox.server.app:app', port={port}, log_level='warning')",
}


async def execute(system: System, *, n: int, clients: int) -> Series:
    """Executions of a cell that does next to nothing: latency of one client, and rate of many, each with its own session."""
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as workspace:
        environment = {**os.environ, "CELLBLOCK_HOME": home, "KERNELBOX_HOME": home}
        port = free_port()
        program = SERVE[system.module].format(port=port)
        server = subprocess.Popen([sys.executable, "-c", program], env=environment, cwd=workspace, stderr=subprocess.DEVNULL)
        try:
            options = {"options": {"recovery": "rolling"}} if system.module == "cellblock" else {}  # as in `named`
            kernels = [made(port, number, options) for number in range(clients)]
            first = await Client.connect(port, kernels[0])
            times = [await first.execute() for _ in range(n + 20)][20:]
            all_clients = [await Client.connect(port, kernel) for kernel in kernels]
            began = time.perf_counter()
            await asyncio.gather(*(many(client, max(n // clients, 5)) for client in all_clients))
            rate = clients * max(n // clients, 5) / (time.perf_counter() - began)
            for client in (first, *all_clients):
                client.transport.close()
            for kernel in kernels:
                ask(port, "DELETE", f"/kernels/{kernel}")
            return {"ms": times, "per second": [rate]}
        finally:
            server.terminate()
            server.wait()
            if system.module == "cellblock":
                subprocess.run([sys.executable, "-m", "cellblock", "daemon", "stop"], env=environment, check=False)


async def many(client: Client, n: int) -> None:
    for _ in range(n):
        await client.execute()


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as found:
        number: int = found.getsockname()[1]
        return number


def made(port: int, number: int, more: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Make a session, as soon as the server listens; return its id. `more` is what the request says besides its name."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return str(ask(port, "POST", "/kernels", {"name": f"bench-{number}", **more})["kernel_id"])
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
        except OSError as error:  # urllib's, around one of connecting
            if not isinstance(getattr(error, "reason", None), ConnectionError) or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def ask(port: int, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    headers = {"Content-Type": "application/json", "Authorization": "Bearer bench"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
    with urllib.request.urlopen(request) as answer:  # of this machine
        return json.loads(answer.read())


def posted(port: int, path: str, body: bytes, more: str = "") -> bytes:
    """Return a request; `more` are lines of its head, each with its end."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer bench\r\n"
        f"Content-Type: application/json\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


class Client(asyncio.Protocol):
    """A connection that takes next to no time itself: what is measured is the server."""

    transport: asyncio.Transport

    def __init__(self, request: bytes = b"") -> None:
        self._request = request
        self._received = b""
        self._answered: asyncio.Future[bytes] | None = None

    @classmethod
    async def connect(cls, port: int, kernel: str) -> Client:
        request = posted(port, f"/kernels/{kernel}/execute", b'{"code": "x = 1"}')
        _, made = await asyncio.get_running_loop().create_connection(lambda: cls(request), "127.0.0.1", port)
        return made

    async def execute(self) -> float:
        """Run the cell; return how long it took."""
        began = time.perf_counter()
        answer = await self.ask(self._request)
        if b'"status":"success"' not in answer.replace(b": ", b":"):
            raise ValueError(f"it failed: {answer!r}")
        return ms(began)

    async def ask(self, request: bytes) -> bytes:
        """Send a request; return the body of the answer."""
        self._answered = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        _, _, rest = head.lower().partition(b"\r\ncontent-length: ")
        if len(body) >= int(rest.partition(b"\r\n")[0]) and self._answered is not None:
            self._received = b""
            self._answered.set_result(body)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(exc or ConnectionError("the server has closed the connection"))
