"""Decides about registering MCP servers, because a program of the model's choice would run outside the sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mcp_types import InputRequiredResult

from cellblock.fronts.mcp_server.deciding import decide
from cellblock.tools.approvals.call import Call
from cellblock.tools.mcp.params import parse_params
from cellblock.tools.mcp.pasted import converted
from cellblock.tools.mcp.place import made_absolute

__all__ = ["converted", "decide_registration", "placed"]

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context

    from cellblock.fronts.mcp_server.clients import Clients
    from cellblock.fronts.mcp_server.server_options import ServerOptions


async def decide_registration(
    clients: Clients, name: str, params: Mapping[str, Any], ctx: Context[Any, Any]
) -> InputRequiredResult | None:
    """Decide by rules, or by asking the person at the client, and record the decision.

    Args:
        clients: The sessions, with the options and rules that decide.
        name: The server's new name.
        params: The server's parameters.
        ctx: The call that registers it.

    Returns:
        A question that the client must answer first; None if the server may be registered.

    Raises:
        AccessError: The server may not be registered.
    """
    return await decide(
        clients,
        Call.freeze("server", name, "register", params),
        "The agent wants to start an MCP server, outside of the sandbox:",
        ctx,
        refused=f"the MCP server {name!r} was not registered",
    )


def placed(options: ServerOptions, name: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve a server's relative paths from the workspace, which over HTTP is not the session's folder.

    On a cluster, paths are relative to the session's directory there, and stay unchanged.

    Args:
        options: The options.
        name: The server's name.
        params: The server's parameters.

    Raises:
        InvalidInputError: The parameters are invalid.
    """
    parsed = parse_params(name, params)
    return parsed.to_dict() if options.cluster else made_absolute(parsed, str(options.workspace)).to_dict()
