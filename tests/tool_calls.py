"""A stand-in for MCP servers that says what it was called with, and a tool port like a session's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

from cellblock.errors import McpServerError
from cellblock.tools.approvals.broker import Broker
from cellblock.tools.calling.content import ToolImage, ToolOutcome, ToolResource
from cellblock.tools.mcp.changes import ToolFacts
from cellblock.tools.serving.listen import HttpServer
from cellblock.tools.serving.tool_app import session_app


class Recorded:
    """Calls nothing, and keeps what it was asked to call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.resets = 0
        self.cancelled = 0
        self.blocking = asyncio.Event()
        self.facts: dict[str, ToolFacts] = {}
        self.facts_each_time: Iterator[ToolFacts] | None = None

    async def call(self, server: str, tool: str, arguments: dict[str, Any], **options: Any) -> ToolOutcome:
        if (check := options.get("check")) is not None and (self.facts or self.facts_each_time):
            check(next(self.facts_each_time) if self.facts_each_time else self.facts[tool])
        self.calls.append((server, tool, arguments))
        match tool:
            case "structured":
                return ToolOutcome(False, "seen", {"got": arguments})
            case "large":
                return ToolOutcome(False, "", images=(ToolImage(b"\x89PNG", "image/png"),), encoded=b'{"n":["\xc3\xbc"]}')
            case "fails":
                return ToolOutcome(True, "the disk is on fire")
            case "breaks":
                raise McpServerError(f"MCP server {server!r}: it died", server=server)
            case "bug":
                raise ZeroDivisionError
            case "silent":
                return ToolOutcome(False, "")
            case "picture":
                return ToolOutcome(
                    False, "a cat", None, (ToolImage(b"\x89PNG", "image/png"),), (ToolResource("file:///a", text="abc"),)
                )
            case "links":
                return ToolOutcome(False, "", resources=(ToolResource("demo://a", "text/plain", "a"),))
            case "waits":
                try:
                    await self.blocking.wait()
                except asyncio.CancelledError:
                    self.cancelled += 1
                    raise
        return ToolOutcome(False, f"{tool}:{arguments}")

    async def reset(self) -> None:
        self.resets += 1

    async def close(self) -> None:
        self.resets += 1


@contextlib.asynccontextmanager
async def tool_port(broker: Broker, servers: Recorded, *names: str, **options: Any) -> AsyncIterator[int]:
    """Serve a session's application; yield the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    listening = HttpServer(
        session_app(broker, lambda name: partial(servers.call, name) if name in names else None, **options), [listener]
    )
    await listening.start()
    try:
        yield listener.getsockname()[1]
    finally:
        await listening.stop()
