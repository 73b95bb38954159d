"""Decides about requests of a model to the server itself, by rules or by the person at the client."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mcp_types import ElicitRequestFormParams, InputRequiredResult

from cellblock.common import config
from cellblock.errors import AccessError
from cellblock.fronts.mcp_server import asking
from cellblock.tools.approvals.broker import NOBODY, Broker
from cellblock.tools.approvals.request import ApprovalRequest
from cellblock.tools.approvals.rules import decide as decide_by_rules
from cellblock.tools.registry.approvals import Approvals

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context

    from cellblock.fronts.mcp_server.clients import Clients
    from cellblock.tools.approvals.call import Call

_CHOICES = ("yes", "no")
_MOST_FORMS = 1000
_UNKNOWN = object()


async def decide(
    clients: Clients,
    call: Call,
    about: str,
    ctx: Context[Any, Any],
    *,
    refused: str,
    session: str = "mcp",
    handle: str = "",
) -> InputRequiredResult | None:
    """Decide by rules, or by asking the person at the client, and record the decision.

    Args:
        clients: The sessions, with the options and rules that decide.
        call: The requested call.
        about: The introduction of the question to the person.
        ctx: The call of this server that needs the decision.
        refused: The start of the error message, before the reason.
        session: The session's id in the audit record.
        handle: The handle of a session created for this call, which a client that calls again does not know yet.

    Returns:
        A question that the client must answer first; None if the call is allowed.

    Raises:
        AccessError: The call is not allowed.
    """
    answer = True if clients.options.approve == "auto" else None
    if clients.options.approve == "ask" and decide_by_rules(clients.rules, call).outcome == "ask" and asking.can_ask(ctx):
        text = str(ApprovalRequest(call.server, call.tool, call.arguments, kind=call.kind))
        asked = asking.forms(about, text, _CHOICES)
        if not asked:
            raise AccessError(f"{refused}: {asking.too_long(text)}")
        answer = await _answer(clients, call, asked, ctx)
        if answer is None:
            number = secrets.token_hex(8)
            clients.forms[number] = None
            if len(clients.forms) > _MOST_FORMS:
                clients.forms.popitem(last=False)
            kept = json.dumps({call.tool: [call.server, call.payload.decode()], "session": handle, "form": number})
            return InputRequiredResult(request_state=kept, input_requests=asking.requests(call.tool, asked))
    record = Approvals(config.state_directory())
    try:
        broker = Broker(clients.rules, None if answer is None else lambda _: answer, None, record.add, session=session)
        decision = await broker.decide(call.kind, call.server, call.tool, call.arguments)
    finally:
        record.close()
    if not decision.allowed:
        why = asking.nobody(clients.options) if decision.reason == NOBODY else decision.reason
        raise AccessError(f"{refused}: {why}")
    return None


async def _answer(
    clients: Clients, call: Call, forms: Sequence[ElicitRequestFormParams], ctx: Context[Any, Any]
) -> bool | None:
    """Return a person's decision; None if the question must be returned to this client."""
    if asking.is_stateless(ctx):
        # Do only what the question was about: a client may return with a different call.
        state = asking.state(ctx)
        asked = state.get(call.tool) == [call.server, call.payload.decode()]
        if not asked or not ctx.input_responses or call.tool not in ctx.input_responses:
            return None
        if clients.forms.pop(state.get("form", ""), _UNKNOWN) is _UNKNOWN:  # already answered
            return None
        return asking.chosen(asking.answer_in(ctx.input_responses, call.tool, forms)) == _CHOICES[0]
    return asking.chosen(await asking.elicit(forms, ctx)) == _CHOICES[0]
