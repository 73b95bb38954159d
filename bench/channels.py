"""The Jupyter API: cells on a WebSocket of ``cellblock serve``."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from typing import Any
from urllib.parse import urlsplit

from bench.cases import Series, ms
from bench.systems import System

_SERVE = """
from cellblock.fronts.gateway.gateway_options import GatewayOptions
from cellblock.fronts.gateway.serve import serve
serve(port=0, options=GatewayOptions(auth=False))
"""


async def execute(_system: System, *, n: int) -> Series:
    """Executions of a cell that does next to nothing, to its reply and the end of its messages."""
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as workspace:
        environment = {**os.environ, "CELLBLOCK_HOME": home}
        server = subprocess.Popen(
            [sys.executable, "-c", _SERVE], env=environment, cwd=workspace, stderr=subprocess.PIPE, text=True
        )
        assert server.stderr is not None
        try:
            address = server.stderr.readline().split("listens at ")[1].split()[0]
            request = urllib.request.Request(f"{address}/api/kernels", b"{}", {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as answer:  # of this machine
                kernel = json.loads(answer.read())["id"]
            client = _Client(urlsplit(address).netloc, f"/api/kernels/{kernel}/channels")
            try:
                return {"ms": [_execute(client) for _ in range(n + 20)][20:]}
            finally:
                client.close()
        finally:
            server.terminate()
            server.wait()
            subprocess.run([sys.executable, "-m", "cellblock", "daemon", "stop"], env=environment, check=False)


class _Client:
    """A WebSocket that takes next to no time itself: what is measured is the server. (One of `websockets` has a thread.)"""

    def __init__(self, authority: str, path: str) -> None:
        host, _, port = authority.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {authority}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        while b"\r\n\r\n" not in self._received:
            self._receive()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101 "):
            raise ValueError(f"there is no WebSocket: {head!r}")

    def send(self, message: Any) -> None:
        """Send a message of some hundred bytes as a text frame. A mask of zeros changes nothing."""
        data = json.dumps(message).encode()
        self._socket.sendall(struct.pack(">BBH4x", 0x81, 0x80 | 126, len(data)) + data)

    def receive(self) -> Any:
        """Return the next message."""
        while not (frame := self._take()):
            self._receive()
        return json.loads(frame)

    def _take(self) -> bytes:
        """Return the content of a frame; empty if it is not there yet."""
        start, size = 2, self._received[1] & 0x7F if len(self._received) > 3 else 0
        if size == 126:
            start, size = 4, struct.unpack_from(">H", self._received, 2)[0]
        if not size or len(self._received) < start + size:
            return b""
        frame, self._received = self._received[start : start + size], self._received[start + size :]
        return frame

    def _receive(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionError("the server has closed the connection")
        self._received += data

    def close(self) -> None:
        """Leave."""
        self._socket.close()


def _execute(client: _Client) -> float:
    number = uuid.uuid4().hex
    header = {"msg_id": number, "msg_type": "execute_request", "session": "s", "username": "", "version": "5.3"}
    content = {"code": "x = 1", "silent": False, "store_history": True, "allow_stdin": False}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    began = time.perf_counter()
    client.send(message)
    while True:
        said = client.receive()
        if said["msg_type"] == "status" and said["content"]["execution_state"] == "idle":
            return ms(began)
