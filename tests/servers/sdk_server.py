"""An MCP server by the SDK, over stdio, with a tool for each thing that tests need. It says by `pid` which process it is."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")

from mcp.server import MCPServer  # noqa: E402
from mcp.server.mcpserver import Context, Image  # noqa: E402
from mcp.types import ToolAnnotations  # noqa: E402
from pydantic import BaseModel  # noqa: E402

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)

server: MCPServer[Any] = MCPServer("desk")


class Sum(BaseModel):
    total: int


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(total=a + b)


@server.tool(structured_output=False, annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True))
def note(text: str) -> str:
    """Write a line to the file that the server was started with."""
    with open(sys.argv[1], "a") as file:
        file.write(f"{text}\n")
    return f"noted {text}"


@server.tool(structured_output=False, annotations=ToolAnnotations(read_only_hint=True))
def pid() -> str:
    """Say which process this is."""
    return str(os.getpid())


@server.tool(structured_output=False)
def secret() -> str:
    """Say how long the secret is."""
    return str(len(os.environ.get("SECRET", "")))


@server.tool(structured_output=False)
def trace(ctx: Context[Any, Any]) -> str:
    """Say in which trace it was called."""
    meta = ctx.request_context.meta
    found = meta.get("traceparent", "") if isinstance(meta, dict) else getattr(meta, "traceparent", "")
    return str(found)


@server.tool(structured_output=False)
def picture() -> Image:
    """Return a picture."""
    return Image(data=PNG, format="png")


@server.tool(structured_output=False)
async def steps(context: Context[Any, Any]) -> str:
    """Report how far it is, three times."""
    for done in range(1, 4):
        await context.report_progress(done, 3, f"step {done}")
        await context.info(f"logged {done}")
    return "done"


@server.tool(structured_output=False)
def fail() -> str:
    """Fail."""
    raise ValueError("the ink is out")


server.run("stdio")
