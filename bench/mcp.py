"""The systems as MCP servers, by a hand-written client over stdio: their start, a cell, and what their tools cost a model."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from bench.cases import Series, ms
from bench.systems import System

_CELL = {"name": "execute_ipython_cell", "arguments": {"code": "x = 1"}}
_EMPTY = """
from mcp.server import MCPServer

server = MCPServer("empty")


@server.tool()
async def nothing() -> str:
    return ""


server.run()
"""
"""A server of the SDK's with a tool that does nothing: what a call costs anyway."""


class _Client:
    """One server, started and introduced."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=dict(os.environ)
        )
        self._number = 0
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        self.ask("initialize", about)
        self._write({"method": "notifications/initialized"})

    def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request, and return its result."""
        self._number += 1
        self._write({"id": self._number, "method": method, "params": params})
        output: IO[bytes] | None = self._process.stdout
        assert output is not None
        for line in output:
            message = json.loads(line)
            if message.get("id") == self._number:
                result: dict[str, Any] = message["result"]
                return result
        raise EOFError("the server has ended")

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


async def server(system: System, *, n: int, starts: int) -> Series:
    """Start a server up to the result of the first cell; then one cell after another, and calls of an empty tool."""
    os.environ["CELLBLOCK_HOME"] = str(Path("state").absolute())
    Path("workspace").mkdir()
    own = system.module == "cellblock"
    command = [str(Path(sys.executable).with_name(system.module)), *(["mcp"] if own else []), "--workspace", "workspace"]
    series: Series = {"start": [], "cell": [], "definitions, characters": []}
    for turn in range(starts):
        began = time.perf_counter()
        client = _Client(command)
        client.ask("tools/call", _CELL)
        series["start"].append(ms(began))
        if turn == starts - 1:
            tools = client.ask("tools/list", {})["tools"]
            shown = [{key: tool[key] for key in ("name", "description", "inputSchema")} for tool in tools]
            series["definitions, characters"].append(len(json.dumps(shown, separators=(",", ":"))))
            series["cell"] = _calls(client, _CELL, n)
        client.close()
    if own:
        empty = _Client([sys.executable, "-c", _EMPTY])
        series["empty tool"] = _calls(empty, {"name": "nothing", "arguments": {}}, n)
        empty.close()
        series["added, ms"] = [statistics.median(series["cell"]) - statistics.median(series["empty tool"])]
    return series


def _calls(client: _Client, call: Mapping[str, Any], n: int) -> list[float]:
    times = []
    for _ in range(n):
        began = time.perf_counter()
        client.ask("tools/call", call)
        times.append(ms(began))
    return times
