"""What tests of the MCP server do with a client."""

from __future__ import annotations

from typing import Any

from mcp import Client
from mcp_types import CallToolResult, TextContent


def text(result: object) -> str:
    """Return the text of an answer."""
    assert isinstance(result, CallToolResult)
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def data(result: object) -> dict[str, Any]:
    """Return the structured content of an answer."""
    assert isinstance(result, CallToolResult)
    return result.structured_content or {}


async def run(connected: Client, code: str, **arguments: Any) -> CallToolResult:
    """Run a cell."""
    result = await connected.call_tool("execute_ipython_cell", {"code": code, **arguments})
    assert isinstance(result, CallToolResult)
    return result
