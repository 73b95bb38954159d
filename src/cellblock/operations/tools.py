"""Tools of MCP servers for one session. Their typed APIs are in its workspace, on the machine that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cellblock.operations.base import Request


class RegisterServer(Request[dict[str, Any]], op="register server"):
    """Generate the typed API of an MCP server in `mcptools/` of a session's workspace, and register the server.

    This starts the server outside of the sandbox: the caller must have approved it. Answered by ``tools``, the names of the
    modules, ``signatures``, a line for each, ``instructions`` of the server, and ``left_out``, the other tools with reasons.

    Attributes:
        session: The session.
        name: The server's name in code.
        params: As for `generate_mcp_sources`. Relative paths begin in the workspace.
    """

    session: str
    name: str
    params: Mapping[str, Any]


class SearchTools(Request[str], op="search tools", repeatable=True):
    """Find tools that the code of a session can import: tools of MCP servers, and saved actions. Answered by a text.

    Attributes:
        session: The session.
        words: Words to search for; empty: all tools.
        tools: Modules whose signatures to return instead.
        module: A module whose whole interface to return instead.
        most: Maximum number of characters of the answer.
    """

    session: str
    words: str = ""
    tools: tuple[str, ...] = ()
    module: str = ""
    most: int = 30_000
