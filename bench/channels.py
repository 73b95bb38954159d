"""The Jupyter API: cells on a WebSocket of ``cellblock serve``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid

from websockets.sync.client import ClientConnection, connect

from bench.cases import Series, ms
from bench.systems import System

_SERVE = """
from cellblock.gateway.options import GatewayOptions
from cellblock.gateway.serve import serve
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
            with connect(f"{address.replace('http', 'ws')}/api/kernels/{kernel}/channels") as socket:
                return {"ms": [_execute(socket) for _ in range(n + 20)][20:]}
        finally:
            server.terminate()
            server.wait()
            subprocess.run([sys.executable, "-m", "cellblock", "daemon", "stop"], env=environment, check=False)


def _execute(socket: ClientConnection) -> float:
    number = uuid.uuid4().hex
    header = {"msg_id": number, "msg_type": "execute_request", "session": "s", "username": "", "version": "5.3"}
    content = {"code": "x = 1", "silent": False, "store_history": True, "allow_stdin": False}
    message = json.dumps({"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"})
    began = time.perf_counter()
    socket.send(message)
    while True:
        said = json.loads(socket.recv())
        if said["msg_type"] == "status" and said["content"]["execution_state"] == "idle":
            return ms(began)
