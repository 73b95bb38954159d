"""An MCP server by the SDK, over stdio: its tool asks a person in the middle of a call, in each version of the protocol."""

from __future__ import annotations

import warnings
from typing import Any

warnings.simplefilter("ignore")

from mcp.server import MCPServer  # noqa: E402
from mcp.server.mcpserver import Context  # noqa: E402
from mcp_types import CallToolResult, ElicitRequest, ElicitRequestFormParams, InputRequiredResult, TextContent  # noqa: E402

SCHEMA = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}

server: MCPServer[Any] = MCPServer("desk")


@server.tool(structured_output=False)
async def book(city: str, ctx: Context[Any, Any]) -> CallToolResult | InputRequiredResult:
    """Book a room."""
    form = ElicitRequestFormParams(message=f"Which day in {city}?", requested_schema=SCHEMA)
    if ctx.protocol_version is None or ctx.protocol_version < "2026":
        answer: Any = await ctx.session.elicit_form(form.message, form.requested_schema, ctx.request_context.request_id)
    elif not ctx.input_responses:
        return InputRequiredResult(request_state="asked", input_requests={"day": ElicitRequest(params=form)})
    else:
        answer = ctx.input_responses["day"]
    day = answer.content["day"] if answer.action == "accept" else answer.action
    return CallToolResult(content=[TextContent(type="text", text=f"{city}, {day}")])


server.run()
