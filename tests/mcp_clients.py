"""What tests of the MCP server do with a client."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from mcp import Client
from mcp_types import CallToolResult, ImageContent, Implementation, TextContent

from cellblock.fronts.mcp_server.answers import META
from cellblock.fronts.mcp_server.clients import Clients
from cellblock.fronts.mcp_server.server import build
from cellblock.fronts.mcp_server.server_options import ServerOptions
from cellblock.host import Host
from processes import eventually

Era = Literal["auto", "legacy"]

PATIENT = Implementation(name="test", version="1")
"""A client without a limit that the server knows. The SDK's own name stands for clients that wait for five seconds."""


@asynccontextmanager
async def connect(
    host: Host, workspace: Path, era: Era = "auto", person: Any = None, *, name: str = "test", **options: Any
) -> AsyncIterator[Client]:
    """Connect a client to a server of its own.

    Args:
        host: Runs its sessions.
        workspace: Where they work.
        era: The version of the protocol.
        person: Answers what the server asks.
        name: What the client is called, by which the server knows its limit.
        options: More options of the server.
    """
    clients = Clients(ServerOptions(workspace=workspace, **options), host)
    try:
        async with Client(
            build(clients), mode=era, elicitation_callback=person, client_info=Implementation(name=name, version="1")
        ) as connected:
            yield connected
    finally:
        await clients.close()


def text(result: object) -> str:
    """Return the text of an answer."""
    assert isinstance(result, CallToolResult)
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def data(result: object) -> dict[str, Any]:
    """Return what an answer tells programs. None of it hides its text: there is no structured content."""
    assert isinstance(result, CallToolResult)
    assert result.structured_content is None
    facts: dict[str, Any] = (result.meta or {}).get(META, {})
    return facts


async def run(connected: Client, code: str, **arguments: Any) -> CallToolResult:
    """Run a cell."""
    result = await connected.call_tool("execute_ipython_cell", {"code": code, **arguments})
    assert isinstance(result, CallToolResult)
    return result


def png(side: int = 1) -> bytes:
    """Return a picture that does not compress well, as its lines are all different."""
    noise = b"".join(b"\0" + zlib.compress(bytes([row % 256]) * side, 0)[7 : 7 + side] for row in range(side))
    parts = [(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)), (b"IDAT", zlib.compress(noise, 0)), (b"IEND", b"")]
    whole = [struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(whole)


def show(picture: bytes, times: int = 1) -> str:
    """Return code that shows a picture."""
    encoded = base64.b64encode(picture).decode()
    return f"import base64, IPython.display as d\nfor _ in range({times}): d.display(d.Image(base64.b64decode('{encoded}')))"


def images(result: CallToolResult) -> list[ImageContent]:
    """Return the pictures of an answer."""
    return [block for block in result.content if isinstance(block, ImageContent)]


async def opened(connected: Client) -> None:
    """Wait until the session of a client is open, which can take longer than the client waits."""

    async def answered() -> bool:
        return not text(await run(connected, "0")).startswith("BusyError: ")

    await eventually(answered, 60)
