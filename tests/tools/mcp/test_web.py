"""Servers over HTTP: streamable HTTP as a stream and as JSON, server-sent events, and what only looks like a server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cellblock import McpServerError
from cellblock.tools.calling.content import MAX_MESSAGE, ToolImage
from cellblock.tools.mcp.params import parse_params
from cellblock.tools.mcp.servers import Servers
from processes import eventually
from suite import first_quick

PROGRAM = Path(__file__).parents[2] / "servers" / "web_server.py"
PATHS = {"stream": "/mcp", "json": "/json/mcp", "sse": "/sse"}

Start = Callable[..., tuple["subprocess.Popen[str]", int]]


@pytest.fixture
def cancelled(tmp_path: Path) -> Path:
    return tmp_path / "cancelled"


@pytest.fixture
def start(nothing_left_behind: None, cancelled: Path) -> Iterator[Start]:
    """Starts web servers, which are killed in the end."""
    started: list[subprocess.Popen[str]] = []

    def start(token: str = "", port: int = 0) -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, str(PROGRAM), token, str(cancelled), str(port)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    yield start
    for process in started:
        process.kill()
        process.communicate()


def servers_at(port: int, headers: dict[str, str] | None = None, connect_timeout: float = 20) -> Servers:
    def lookup(name: str) -> Any:
        path = PATHS.get(name, f"/{name}") + "?key=${TOKEN}"
        return parse_params(name, {"url": f"http://127.0.0.1:{port}{path}", "headers": headers or {}})

    return Servers(lookup, connect_timeout=connect_timeout, environment={"TOKEN": "s3cret"})


@pytest.fixture
async def servers(start: Start) -> AsyncIterator[Servers]:
    async with servers_at(start()[1]) as servers:
        yield servers


@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
async def test_a_server_over_http_works_like_any_other(servers: Servers, name: str, cancelled: Path) -> None:
    tools = {tool.name: tool for tool in await servers.list_tools(name)}
    assert tools["add"].output_schema is not None
    assert tools["add"].description == "Add two numbers."
    sums = await asyncio.gather(*(servers.call(name, "add", {"a": 1, "b": number}) for number in range(20)))
    assert [outcome.structured for outcome in sums] == [{"total": number + 1} for number in range(20)]
    assert (await servers.call(name, "picture", {})).images == (ToolImage(b"\x89PNG", "image/png"),)
    assert (await servers.call(name, "add", {"a": "one", "b": 2})).is_error
    with pytest.raises(McpServerError, match=f"'wait' of MCP server '{name}' did not answer within 0.5 s"):
        await servers.call(name, "wait", {}, timeout=0.5)
    if name != "json":  # there, the SDK's server does not look whether anybody still waits for the answer
        await eventually(cancelled.exists)
    assert (await servers.call(name, "add", {"a": 1, "b": 1})).structured == {"total": 2}


@pytest.mark.slow
async def test_the_schema_of_a_server_is_not_run_in_the_loop(servers: Servers) -> None:
    """What a result has to be is for whoever uses it to check, in a process of its own."""
    assert (await servers.call("stream", "wrong", {})).structured == {"total": 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
async def test_a_result_that_is_too_large_is_an_error(servers: Servers, name: str) -> None:
    with pytest.raises(McpServerError, match=r"limit|exceeded"):
        await servers.call(name, "big", {"size": MAX_MESSAGE + 1}, timeout=60)
    assert (await servers.call(name, "add", {"a": 1, "b": 1}, timeout=60)).structured == {"total": 2}


@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
async def test_a_server_that_dies_in_a_call_is_connected_to_again(start: Start, name: str) -> None:
    process, port = start()
    async with servers_at(port) as servers:
        await servers.list_tools(name)
        with pytest.raises(McpServerError, match=f"'die' of MCP server '{name}'"):
            await servers.call(name, "die", {}, timeout=20)
        process.wait()
        with pytest.raises(McpServerError, match="connection"):
            await servers.call(name, "add", {"a": 1, "b": 1}, timeout=20)
        start(port=port)
        assert (await servers.call(name, "add", {"a": 1, "b": 1}, timeout=20)).structured == {"total": 2}


class _Sessions(BaseHTTPRequestHandler):
    """A server of one session at a time, which it can forget. It has no stream, and says so by 404."""

    session, forgotten = "1", 404
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(404, None)

    def do_DELETE(self) -> None:
        self._answer(405, None)

    def do_POST(self) -> None:
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if said["method"] != "initialize" and self.headers.get("mcp-session-id") != self.session:
            return self._answer(self.forgotten, {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "who?"}})
        if "id" not in said:
            return self._answer(202, None)
        if said["method"] == "initialize":
            version = said["params"]["protocolVersion"]
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "it", "version": "1"}}
        elif said["method"] == "tools/call":
            if said["params"]["name"] == "odd":
                return self._answer(400, {"jsonrpc": "2.0", "id": said["id"], "error": {"code": -32602, "message": "odd"}})
            result = {"content": [{"type": "text", "text": f"of session {self.session}"}]}
        else:
            result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("tell", "odd")]}
        return self._answer(200, {"jsonrpc": "2.0", "id": said["id"], "result": result})

    def _answer(self, status: int, said: dict[str, Any] | None) -> None:
        body = b"" if said is None else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("mcp-session-id", self.session)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


@pytest.mark.slow
@pytest.mark.parametrize("status", first_quick([400, 404]))
async def test_a_server_that_has_forgotten_its_session_is_connected_to_again(status: int) -> None:
    handler = type("Handler", (_Sessions,), {"forgotten": status})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            async with servers_at(server.server_port) as servers:
                assert (await servers.call("it", "tell", {}, timeout=20)).text == "of session 1"
                with pytest.raises(McpServerError):
                    await servers.call("it", "odd", {}, timeout=20)
                assert (await servers.call("it", "tell", {}, timeout=20)).text == "of session 1"
                handler.session = "2"  # type: ignore[attr-defined]  # of the class above
                with pytest.raises(McpServerError, match=f"HTTP {status}"):
                    await servers.call("it", "tell", {}, timeout=20)
                assert (await servers.call("it", "tell", {}, timeout=20)).text == "of session 2"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
async def test_a_wrong_token_is_told_as_one(start: Start, name: str) -> None:
    port = start("s3cret")[1]
    async with servers_at(port, {"Authorization": "Bearer ${TOKEN}"}) as servers:
        assert (await servers.call(name, "add", {"a": 1, "b": 1})).structured == {"total": 2}
    async with servers_at(port, {"Authorization": "Bearer wr0ng"}) as servers:
        with pytest.raises(McpServerError, match=f"'{name}' cannot be used: .*401 Unauthorized") as caught:
            await servers.call(name, "add", {"a": 1, "b": 1})
        assert "wr0ng" not in str(caught.value)
        assert "s3cret" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("html", "Unexpected content type: text/html"),
        ("nothing", "HTTP 404 Not Found"),
        ("html/sse", "404 Not Found"),
        ("bomb", "a compressed body, which was not accepted"),
        ("flood", f"{MAX_MESSAGE} bytes"),
    ],
)
async def test_a_url_that_is_no_server_is_told_as_such(servers: Servers, name: str, said: str) -> None:
    with pytest.raises(McpServerError, match=said) as caught:
        await servers.call(name, "add", {"a": 1, "b": 1})
    assert f"MCP server '{name}' cannot be used" in str(caught.value)
    assert (await servers.call("stream", "add", {"a": 1, "b": 1})).structured == {"total": 2}


async def test_a_server_that_nobody_runs_is_told_as_such() -> None:
    async with servers_at(9) as servers:
        for name in ("stream", "sse"):
            with pytest.raises(McpServerError, match=f"'{name}' cannot be used: .*connection attempts failed"):
                await servers.call(name, "add", {})


@pytest.mark.slow
async def test_a_server_that_accepts_and_says_nothing_is_given_up() -> None:
    ended = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        ended.set()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with silent, servers_at(silent.sockets[0].getsockname()[1], connect_timeout=0.5) as servers:
        for name in ("stream", "sse"):
            ended.clear()
            with pytest.raises(McpServerError, match=f"'{name}' cannot be used: it was not ready within 0.5 s"):
                await servers.call(name, "add", {})
            await ended.wait()
