"""MCP servers, calls of tools, and decisions about them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from cellblock.errors import McpServerError
from cellblock.model.decisions import Decision
from cellblock.tools.approvals.broker import Broker
from cellblock.tools.approvals.rules import Rule, Rules
from cellblock.tools.calling.content import ToolOutcome
from cellblock.tools.mcp import dialogue
from cellblock.tools.mcp.params import RemoteServer, StdioServer
from cellblock.tools.mcp.servers import Servers
from cellblock.tools.registry.approvals import Approvals
from cellblock.tools.serving.port import ToolPort
from cellblock.tools.serving.tool_app import session_app

assert dialogue.MAX_TOOLS  # what is measured is not the time that it takes to load

_SERVER = Path(__file__).parents[2] / "tests" / "servers" / "hostile_server.py"
_WEB_SERVER = _SERVER.with_name("hostile_web_server.py")
_POST_HEAD = b"POST /run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_LONG = {"path": "a" * 60_000 + "b"}


async def _call(tool: str, mode: str = "good", seconds: float = 2.0, **arguments: Any) -> None:
    params = StdioServer(sys.executable, (str(_SERVER), mode))
    async with Servers(lambda _: params, environment=os.environ) as servers:
        with contextlib.suppress(McpServerError):
            await servers.call("server", tool, arguments, timeout=seconds)


async def case_backtracking_schema() -> None:
    """A result that keeps a pattern of its schema busy."""
    await _call("backtracks")


async def case_rows() -> None:
    """A result of 200,000 rows that its schema says something about."""
    await _call("rows", seconds=20, count=200_000)


async def case_empty_lines() -> None:
    """A server that writes empty lines as quickly as it can."""
    await _call("blank")


async def case_notices() -> None:
    """A server that writes notifications as quickly as it can."""
    await _call("notices")


async def case_values() -> None:
    """A result of 5,000,000 empty lists."""
    await _call("values", row="[],", count=5_000_000, seconds=10)


async def case_values_allowed() -> None:
    """A result of nearly as many values as are allowed."""
    await _call("values", row="[],", count=990_000, seconds=20)


async def case_values_decoded_here() -> None:
    """As many values as are decoded in the loop."""
    await _call("values", row="[],", count=9_900, seconds=10)


async def case_rows_to_a_session() -> None:
    """200,000 rows with three values each, from a server to the code that called it."""
    params = StdioServer(sys.executable, (str(_SERVER), "good"))
    row = '{"id":123456,"name":"somebody","mail":"somebody@example.com"},'
    async with Servers(lambda _: params, environment=os.environ) as servers:
        listener = socket.create_server(("127.0.0.1", 0))
        port = ToolPort(session_app(Broker(Rules((Rule("allow"),))), lambda name: functools.partial(servers.call, name)))
        port.serve(listener)
        arguments = {"row": row, "count": 200_000}
        body = json.dumps({"server_name": "server", "tool": "values", "arguments": arguments}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
        writer.write(_POST_HEAD % len(body) + body)
        await reader.readuntil(b"\r\n\r\n")
        size = 0
        while size < len(row) * 200_000:
            size += len(await reader.read(65536))
        writer.close()
        await port.close()


async def case_values_in_a_text() -> None:
    """A result that is one text with 15 MB of brackets."""
    await _call("values", row="[],", count=5_000_000, quoted=True, seconds=10)


async def case_requests() -> None:
    """A server that writes requests as quickly as it can, and reads no answers."""
    await _call("asks")


async def case_list_of_tools() -> None:
    """A list of tools with large pages and no end."""
    params = StdioServer(sys.executable, (str(_SERVER), "fat-pages"))
    async with Servers(lambda _: params, environment=os.environ) as servers:
        with contextlib.suppress(McpServerError):
            await servers.list_tools("server")


async def case_wildcards() -> None:
    """200 gathered decisions about long arguments, by rules with wildcards."""
    rules = tuple(Rule("deny", arguments={"path": f"**a*{letter}*b"}) for letter in "cdefg")
    broker = Broker(Rules((*rules, Rule("allow"))))
    await asyncio.gather(*(broker.decide("tool", "files", "read", _LONG) for _ in range(200)))


async def case_gathered_calls() -> None:
    """64 connections that post long arguments at the same time."""

    async def call(tool: str, arguments: dict[str, Any], **options: Any) -> ToolOutcome:
        return ToolOutcome(False, "done")

    rules = Rules((Rule("deny", arguments={"path": "**a*c*b"}), Rule("allow")))
    listener = socket.create_server(("127.0.0.1", 0))
    port = ToolPort(session_app(Broker(rules), lambda _: call))
    port.serve(listener)
    body = b'{"server_name":"files","tool":"read","arguments":{"path":"%s"}}' % (b"a" * 500_000)

    async def post() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
        writer.write(_POST_HEAD % len(body) + body)
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    await asyncio.gather(*(post() for _ in range(64)))
    await port.close()


async def case_denials() -> None:
    """5,000 denials on record."""
    with tempfile.TemporaryDirectory() as directory, Approvals(Path(directory)) as approvals:
        broker = Broker(Rules((), "deny"), record=approvals.add)
        decisions: list[Decision] = []
        for number in range(5000):
            decisions.append(await broker.decide("shell", "shell", "shell", {"command": f"{number}" + "x" * 30_000}))
            await asyncio.sleep(0)
        assert not any(decision.allowed for decision in decisions)


async def _call_over_http(tool: str, path: str = "mcp", seconds: float = 2.0, **arguments: Any) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, str(_WEB_SERVER), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    params = RemoteServer(
        f"http://127.0.0.1:{int(await process.stdout.readline())}/{path}", "sse" if path == "sse" else "http"
    )
    try:
        async with Servers(lambda _: params, environment={}) as servers:
            with contextlib.suppress(McpServerError):
                await servers.call("server", tool, arguments, timeout=seconds)
    finally:
        process.kill()
        await process.wait()


async def case_http_good() -> None:
    """A connection over HTTP and a call that is answered as it should be."""
    await _call_over_http("good")


async def case_http_notices() -> None:
    """Notifications without end, over HTTP."""
    await _call_over_http("notices")


async def case_http_tiny_events() -> None:
    """Events that say nothing, without end."""
    await _call_over_http("tiny-events", "sse")


async def case_http_lines() -> None:
    """One event of lines without end."""
    await _call_over_http("lines")


async def case_http_long_event() -> None:
    """One event of one line without end."""
    await _call_over_http("long-event")


async def case_http_requests() -> None:
    """Requests of the server without end; the answers to them are never answered."""
    await _call_over_http("pings")


async def case_http_values() -> None:
    """A result of 2,000,000 empty lists in one event."""
    await _call_over_http("values-in-an-event", count=2_000_000)


async def case_http_values_allowed() -> None:
    """A result of nearly as many values as are allowed, over HTTP."""
    await _call_over_http("values", count=990_000, seconds=20)


async def case_http_values_decoded_here() -> None:
    """As many values as are decoded in the loop, over HTTP."""
    await _call_over_http("values", count=9_900)


async def case_http_endless_body() -> None:
    """A body without end."""
    await _call_over_http("body")


async def case_http_tiny_chunks() -> None:
    """A body in chunks of one byte."""
    await _call_over_http("tiny-chunks")


async def case_http_headers() -> None:
    """A response with 20,000 headers."""
    await _call_over_http("headers", count=20_000)


async def case_http_interim_responses() -> None:
    """Responses that announce a response, by the thousand."""
    await _call_over_http("interim", count=100)
