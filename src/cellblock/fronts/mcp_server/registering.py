"""Decides about registering MCP servers: a program of the model's choice would run outside the sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mcp_types import ElicitRequestFormParams, InputRequiredResult

from cellblock.common import config
from cellblock.errors import AccessError
from cellblock.fronts.mcp_server import asking
from cellblock.tools.approvals.broker import Broker
from cellblock.tools.approvals.call import Call
from cellblock.tools.approvals.request import ApprovalRequest
from cellblock.tools.approvals.rules import decide
from cellblock.tools.registry.approvals import Approvals

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context

    from cellblock.fronts.mcp_server.clients import Clients

_CHOICES = ("yes", "no")
_KEY = "register"


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
    call = Call.freeze("server", name, _KEY, params)
    answer: bool | None = clients.options.approve == "auto"
    if clients.options.approve == "ask" and decide(clients.rules, call).outcome == "ask" and asking.can_ask(ctx):
        asked = _forms(call)
        if not asked:
            raise AccessError(f"the MCP server {name!r} was not registered: {asking.too_long(_text(call))}")
        answer = await _answer(call, asked, ctx)
        if answer is None:
            kept = json.dumps({_KEY: [name, call.payload.decode()]})
            return InputRequiredResult(request_state=kept, input_requests=asking.requests(_KEY, asked))
    record = Approvals(config.state_directory())
    try:
        broker = Broker(clients.rules, None if answer is None else lambda _: answer, None, record.add, session="mcp")
        decision = await broker.decide("server", name, _KEY, params)
    finally:
        record.close()
    if not decision.allowed:
        raise AccessError(
            f'the MCP server {name!r} was not registered: {decision.reason}; a rule with kind = "server" can allow it, '
            "or the person at the client if the server runs with --approve ask"
        )
    return None


async def _answer(call: Call, forms: Sequence[ElicitRequestFormParams], ctx: Context[Any, Any]) -> bool | None:
    """Return a person's decision; None if the question must be returned to this client."""
    if asking.is_stateless(ctx):
        # Register only what the question was about: a client may come back with something else.
        asked = asking.state(ctx).get(_KEY) == [call.server, call.payload.decode()]
        if not asked or not ctx.input_responses or _KEY not in ctx.input_responses:
            return None
        return asking.chosen(asking.answer_in(ctx.input_responses, _KEY, forms)) == _CHOICES[0]
    return asking.chosen(await asking.elicit(forms, ctx)) == _CHOICES[0]


def _forms(call: Call) -> list[ElicitRequestFormParams]:
    return asking.forms("The agent wants to start an MCP server, outside of the sandbox:", _text(call), _CHOICES)


def _text(call: Call) -> str:
    return str(ApprovalRequest(call.server, call.tool, call.arguments, kind="server"))
