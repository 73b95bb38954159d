"""Decides about registering MCP servers: a program of the model's choice would run outside the sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mcp_types import InputRequiredResult

from cellblock.fronts.mcp_server.deciding import decide
from cellblock.tools.approvals.call import Call

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context

    from cellblock.fronts.mcp_server.clients import Clients


async def decide_registration(
    clients: Clients, name: str, params: Mapping[str, Any], ctx: Context[Any, Any]
) -> InputRequiredResult | None:
    """Decide by rules, or by asking the person at the client, and record the decision.

    Args:
        clients: Whose options and rules decide.
        name: The server's new name.
        params: Its parameters.
        ctx: The call that registers it.

    Returns:
        A question that the client must answer first; None if the server may be registered.

    Raises:
        AccessError: It may not.
    """
    return await decide(
        clients,
        Call.freeze("server", name, "register", params),
        "The agent wants to start an MCP server, outside of the sandbox:",
        ctx,
        refused=f"the MCP server {name!r} was not registered",
        hint='; a rule with kind = "server" can allow it, or the person at the client if the server runs with --approve ask',
    )
