"""Questions of MCP servers during calls of named sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cellblock.model.sessions import PendingApproval
from cellblock.service.named.approvals import PendingApprovals
from cellblock.service.named.session import NamedSession
from cellblock.tools.approvals.elicitation import Elicitation

_UNASKED = (
    "[cellblock] MCP server {!r} asked for input and got no answer: in a session with "
    "approve='ask', it waits for an answer (cellblock approvals)"
)


def tell_that_nobody_answers(named: NamedSession, elicitation: Elicitation) -> None:
    """Note in the output that a question was refused because this session allows everything and no one could answer."""
    named.session.cells.note(_UNASKED.format(elicitation.server))


async def ask_about(named: NamedSession, approvals: PendingApprovals, elicitation: Elicitation) -> Mapping[str, Any] | None:
    """Show a question to followers of the running execution, and wait for an answer.

    Args:
        named: The session that made the call.
        approvals: The store of pending questions.
        elicitation: The question.

    Returns:
        The values; None for a refusal.
    """
    running = next((one for one in named.executions.values() if one.record.state == "running"), None)
    pending = PendingApproval(
        id=elicitation.id,
        session=named.record.kernel_id,
        session_name=named.record.name,
        execution="" if running is None else running.record.id,
        kind="question",
        server=elicitation.server,
        tool="",
        arguments={"message": elicitation.message, "schema": dict(elicitation.schema)},
        text=str(elicitation),
    )
    if running is not None:
        running.log.add("approval", pending.to_dict())
    state = "withdrawn"
    try:
        answer = await approvals.ask(pending, elicitation)
        state = "rejected" if answer is None else "accepted"
        return answer
    finally:
        if running is not None and not running.ended:
            running.log.add("decided", {"id": pending.id, "state": state})
