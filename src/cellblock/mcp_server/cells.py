"""Runs cells for MCP clients: progress while they run, questions to a person, and a stop when the client cancels."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from mcp_types.version import is_version_at_least

from cellblock.errors import NotFoundError
from cellblock.named.executions import Execution
from cellblock.named.past import PastExecution

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context

    from cellblock.mcp_server.clients import Clients
    from cellblock.model.sessions import PendingApproval
    from cellblock.named.session import NamedSession

_STATELESS = "2026-07-28"
"""Since this version of the protocol, a server cannot ask its client during a call: it returns its questions."""

_BEAT = 5.0
"""Seconds between two reports of progress: hosts give up a call that is silent for minutes."""

_ROUNDS = 8
"""How often one call may come back with questions. Clients of the SDK stop after ten."""

_DOES = {"tool": "call a tool", "shell": "run a command", "network": "reach a host"}
_CHOICES = ("once", "always for this tool", "no")


async def run(
    clients: Clients, named: NamedSession, execution: Execution | PastExecution, wait: float, ctx: Context[Any, Any]
) -> InputRequiredResult | None:
    """Wait until a cell has ended, or for so long; meanwhile report progress, and have what it asks for decided.

    Args:
        clients: The sessions.
        named: The cell's session.
        execution: The cell.
        wait: Seconds to wait at most.
        ctx: The call.

    Returns:
        Questions that the client must answer first, if it is one that has to call again with the answers; else None.
    """
    if ctx.input_responses:
        await _take_answers(clients, named, ctx.input_responses)
    deadline = time.monotonic() + wait
    try:
        while not execution.ended and (left := deadline - time.monotonic()) > 0:
            if waiting := clients.sessions.approvals.waiting(named.record.kernel_id):
                if (questions := await _decide(clients, waiting, execution, ctx)) is not None:
                    return questions
                continue
            await _pause(clients, named, execution, min(left, _BEAT))
            if not execution.ended:
                await ctx.report_progress(time.monotonic() - deadline + wait, message=_last_words(execution))
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await execution.cancel(named.session)
        raise
    return None


async def _pause(clients: Clients, named: NamedSession, execution: Execution | PastExecution, most: float) -> None:
    """Wait until the cell has ended or asks for something, and no longer than that."""
    with suppress(TimeoutError):
        async with asyncio.timeout(most):
            while not execution.ended and not clients.sessions.approvals.waiting(named.record.kernel_id):
                await execution.changed()


def _last_words(execution: Execution | PastExecution) -> str:
    lines = execution.said.strip().splitlines()
    return lines[-1][-200:] if lines else "running"


async def _decide(
    clients: Clients, waiting: list[PendingApproval], execution: Execution | PastExecution, ctx: Context[Any, Any]
) -> InputRequiredResult | None:
    """Have what waits decided, all of it at once."""
    ids = tuple(asked.id for asked in waiting)
    if clients.options.approve != "ask" or not can_ask(ctx):
        await clients.sessions.approvals.decide(ids, allow=False)
        return None
    if not is_stateless(ctx):
        await _ask_each(clients, waiting, ctx)
        return None
    rounds = state(ctx).get("round", 0) + 1
    if rounds > _ROUNDS:
        await clients.sessions.approvals.decide(ids, allow=False)
        return None
    questions: dict[str, Any] = {asked.id: ElicitRequest(params=_form(asked)) for asked in waiting}
    kept = json.dumps({"execution": execution.record.id, "round": rounds})
    return InputRequiredResult(request_state=kept, input_requests=questions)


async def _ask_each(clients: Clients, waiting: list[PendingApproval], ctx: Context[Any, Any]) -> None:
    for asked in waiting:
        form = _form(asked)
        try:
            answer = await ctx.session.elicit_form(form.message, form.requested_schema, ctx.request_context.request_id)
        except MCPError:
            answer = None
        await _take_answer(clients, asked.id, answer)


async def _take_answers(clients: Clients, named: NamedSession, answers: Any) -> None:
    """Take the answers to what this session asked. A client decides nothing for another's session."""
    asked = {pending.id for pending in clients.sessions.approvals.waiting(named.record.kernel_id)}
    for number in asked & answers.keys():
        await _take_answer(clients, number, answers[number])


async def _take_answer(clients: Clients, number: str, answer: Any) -> None:
    """Take one answer. A refusal counts for this once: a host may refuse in the name of a person who saw nothing."""
    choice = chosen(answer)
    always = "tool" if choice == _CHOICES[1] else ""
    await clients.sessions.approvals.decide((number,), allow=choice in _CHOICES[:2], always=always)


def _form(asked: PendingApproval) -> ElicitRequestFormParams:
    return form(f"The code wants to {_DOES[asked.kind]}: {asked.text[:4000]}", _CHOICES)


def form(message: str, choices: tuple[str, ...]) -> ElicitRequestFormParams:
    """Return a form in which a person decides.

    Args:
        message: What it is about.
        choices: What they can choose.
    """
    decision = {"type": "string", "title": "Allow it?", "enum": [*choices]}
    schema = {"type": "object", "properties": {"decision": decision}, "required": ["decision"]}
    return ElicitRequestFormParams(message=message, requested_schema=schema)


def chosen(answer: object) -> object:
    """Return what a person has chosen in a `form`; None if they left it or nobody saw it."""
    if isinstance(answer, ElicitResult) and answer.action == "accept":
        return (answer.content or {}).get("decision")
    return None


def is_stateless(ctx: Context[Any, Any]) -> bool:
    """Whether questions to this client must be returned, for it to call again."""
    return is_version_at_least(ctx.protocol_version or "", _STATELESS)


def can_ask(ctx: Context[Any, Any]) -> bool:
    """Whether there is somebody at the client who can be asked."""
    known = ctx.client_capabilities
    return known is not None and known.elicitation is not None


def state(ctx: Context[Any, Any]) -> dict[str, Any]:
    """Return what this server has given a client to come back with; the SDK has checked that it is unchanged."""
    found: dict[str, Any] = json.loads(ctx.request_state) if ctx.request_state else {}
    return found


def resumed(clients: Clients, number: str, ctx: Context[Any, Any]) -> tuple[NamedSession, Execution | PastExecution] | None:
    """Return the cell that a call goes on with: one that it came back for with answers, or that it names.

    Raises:
        NotFoundError: It is not known, or no longer.
    """
    number = state(ctx).get("execution", number)
    if not number:
        return None
    try:
        named, execution = clients.sessions.executions.find(number)
    except NotFoundError:
        named = None
    if named is None:
        raise NotFoundError(f"there is no cell {number!r}, or no longer: run the code again")
    return named, execution
