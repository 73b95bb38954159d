"""What tests of the MCP server do with a client."""

from __future__ import annotations

from typing import Any

from mcp import Client
from mcp_types import CallToolResult, TextContent

from cellblock.mcp_server.answers import META


def text(result: object) -> str:
    """Return the text of an answer."""
    assert isinstance(result, CallToolResult)
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def data(result: object) -> dict[str, Any]:
    """Return what an answer tells programs. None of it hides its text: there is no structured content."""
    assert isinstance(result, CallToolResult)
    assert result.structured_content is None
    return (result.meta or {}).get(META, {})


async def run(connected: Client, code: str, **arguments: Any) -> CallToolResult:
    """Run a cell."""
    result = await connected.call_tool("execute_ipython_cell", {"code": code, **arguments})
    assert isinstance(result, CallToolResult)
    return result
