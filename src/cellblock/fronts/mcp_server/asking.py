"""Waits for cells, and asks the person at the client meanwhile: for approvals, and for answers to MCP servers' questions."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from mcp_types.version import is_version_at_least

from cellblock.common.tasks import first_of
from cellblock.errors import InvalidInputError, NotFoundError, StateError
from cellblock.fronts.mcp_server.cells import Cell
from cellblock.operations.approvals import Decide
from cellblock.operations.executions import Lookup
from cellblock.operations.sessions import Status
from cellblock.tools.approvals.request import visible

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context

    from cellblock.fronts.mcp_server.clients import Clients
    from cellblock.fronts.mcp_server.server_options import ServerOptions
    from cellblock.model.sessions import PendingApproval

_STATELESS = "2026-07-28"
"""From this version of the protocol on, a server cannot ask its client during a call: it returns its questions."""

_ROUNDS = 8
"""Rounds of questions for one call. Clients of the SDK stop after ten."""

MOST = 4_000
"""Characters that a form shows: clients cut longer texts silently."""

_PARTS = 8
"""Most forms that show one longer text. Even longer ones are refused: no person reads them."""

_DOES = {"tool": "call a tool", "shell": "run a command", "network": "reach a host", "http": "send a request"}
_NEXT = ("I have read this part", "no")
_BEAT = 5.0
"""Seconds between two reports of progress: hosts give up calls that are silent for minutes."""

_LATE = "[cellblock] An answer came too late and had no effect: {}."


async def resumed(clients: Clients, number: str, ctx: Context[Any, Any]) -> Cell | None:
    """Return the cell that a call continues: the cell of its answers, or the named cell.

    Raises:
        NotFoundError: The cell is unknown, or no longer stored.
    """
    kept = state(ctx)
    number = kept.get("execution", number)
    if not number:
        return None
    try:
        session = await clients.ask(Status((await clients.ask(Lookup(number))).session))
    except NotFoundError:
        session = None
    if session is None or not clients.is_ours(session.name):
        raise NotFoundError(f"there is no cell {number!r}, or it is no longer stored: run the code again")
    return Cell(clients, session, number, kept.get("asker", ""))


async def run(clients: Clients, cell: Cell, wait: float, ctx: Context[Any, Any]) -> InputRequiredResult | None:
    """Wait for the end of a cell, within a limit. Meanwhile, report progress and ask about its requests.

    Args:
        clients: The sessions.
        cell: The cell.
        wait: The maximum number of seconds to wait.
        ctx: The call.

    Returns:
        Questions for a client that has to call again with the answers; else None.
    """
    deadline = time.monotonic() + wait
    try:
        if ctx.input_responses:
            await _take_answers(clients, cell, ctx)
        while not cell.ended and (left := deadline - time.monotonic()) > 0:
            asks: bool | None = None
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, _BEAT)):
                    asks = await cell.has_news()
            if asks is None:
                cell.look_again()
                await ctx.report_progress(time.monotonic() - deadline + wait, message=_last_words(cell))
            elif asks and (questions := await _ask(clients, cell, ctx)) is not None:
                return questions
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await cell.cancel()
        raise
    return None


def _last_words(cell: Cell) -> str:
    lines = cell.said.strip().splitlines()
    return lines[-1][-200:] if lines else "running"


async def _ask(clients: Clients, cell: Cell, ctx: Context[Any, Any]) -> InputRequiredResult | None:
    """Ask about all requests that wait in a cell; refuse them if no person can be asked.

    Args:
        clients: The sessions.
        cell: The cell that the client waits for.
        ctx: The call.

    Returns:
        Questions for a client that has to call again with the answers; else None.
    """
    asked = [question for question in await cell.waiting() if await _can_be_asked(clients, cell, question, ctx)]
    if not is_stateless(ctx):
        for question in asked:
            await _ask_now(clients, cell, question, ctx)
        return None
    rounds = state(ctx).get("round", 0) + 1
    if rounds > _ROUNDS:
        for question in asked:
            await _deny(clients, cell, question, f"the client was asked {_ROUNDS} times: run less code in one call")
        return None
    if not asked:
        return None
    questions: dict[str, Any] = {}
    for question in asked:
        questions |= requests(question.id, _forms(question))
    kept = json.dumps({"execution": cell.id, "round": rounds, "asker": cell.asker.id})
    return InputRequiredResult(request_state=kept, input_requests=questions)


async def _ask_now(clients: Clients, cell: Cell, question: PendingApproval, ctx: Context[Any, Any]) -> None:
    """Show one request, and apply the answer. The form is withdrawn if the request no longer waits."""
    answering, _ = await first_of(elicit(_forms(question), ctx), cell.no_longer_waits(question.id))
    if answering.cancelled():
        return
    if (said := answering.result()) is None:
        await _deny(clients, cell, question, "the client failed to show the question")
    else:
        await _take_answer(clients, cell, question, said)


async def _can_be_asked(clients: Clients, cell: Cell, question: PendingApproval, ctx: Context[Any, Any]) -> bool:
    """Return whether the person at the client can be asked; if not, deny the request."""
    by_person = question.kind == "question" or clients.options.approve == "ask"
    if not by_person or not can_ask(ctx):
        await _deny(clients, cell, question, nobody(clients.options))
        return False
    if not _forms(question):
        await _deny(clients, cell, question, too_long(question.text))
        return False
    return True


async def _deny(clients: Clients, cell: Cell, question: PendingApproval, reason: str) -> None:
    """Deny a request about which no person is asked. A note has the reason if the code does not get it."""
    with suppress(StateError):
        await clients.ask(Decide((question.id,), allow=False, reason=reason))
        if question.kind == "question":
            cell.notes.append(f"[cellblock] The MCP server {question.server} got no answer to its question: {reason}.")
        elif question.kind == "network":
            cell.notes.append(f"[cellblock] {visible(choices(question)[1].partition(': ')[2])} was refused: {reason}.")


def nobody(options: ServerOptions) -> str:
    """Return why no person decides, and how the user can allow requests."""
    if options.approve == "rules":
        why = "--approve rules asks no person, and no rule allows it. To allow it, the user can add"
    else:
        why = "no person could be asked, because this client shows no questions (MCP elicitation). To allow it, the user can"
        why += " start cellblock mcp with --approve auto, or with"
    return f"{why} a rule (--rules FILE, docs/approvals.md)"


async def _take_answers(clients: Clients, cell: Cell, ctx: Context[Any, Any]) -> None:
    """Apply a client's answers, only to requests about which this call has asked."""
    answers = ctx.input_responses or {}
    asked = {number for number, asker in clients.asking.items() if asker.id == cell.asker.id}
    known = {question.id: question for question in await cell.waiting()}
    for number in answers:
        if number in asked and number in known:
            await _take_answer(clients, cell, known[number], answer_in(answers, number, _forms(known[number])))
        elif state(ctx) and "/" not in number:  # not a part of a longer text
            cell.notes.append(_LATE.format("the request has ended, or a later call asks about it"))


async def _take_answer(clients: Clients, cell: Cell, question: PendingApproval, answer: object) -> None:
    """Apply an answer to its request, or note that the request has ended."""
    try:
        if await _decide(clients, question, answer):
            return
        why = "the request has ended"
    except StateError as error:
        why = str(error)
    if answer is not None:
        cell.notes.append(_LATE.format(why))


async def _decide(clients: Clients, question: PendingApproval, answer: object) -> bool:
    """Apply one answer; return whether its request was pending. A refusal counts once: a host may refuse without asking.

    Raises:
        StateError: The request has ended.
    """
    ids = (question.id,)
    if question.kind != "question":
        once, always, _ = choices(question)
        choice = chosen(answer)
        scope = ("tool" if question.kind == "tool" else "call") if choice == always else ""
        return bool(await clients.ask(Decide(ids, choice in (once, always), scope)))
    accepted = answer if isinstance(answer, ElicitResult) and answer.action == "accept" else None
    filled_in = {} if accepted is None else accepted.content or {}
    try:
        return bool(await clients.ask(Decide(ids, accepted is not None, answer=filled_in)))
    except InvalidInputError:  # the answer does not fit the form
        return bool(await clients.ask(Decide(ids, allow=False)))


def choices(question: PendingApproval) -> tuple[str, str, str]:
    """Return the choices for a request: once, permanently, and no. The second choice names exactly what it covers."""
    given = question.arguments
    covered = {
        "tool": f"tool {question.tool} of server {question.server}",
        "network": f"{given.get('host')} port {given.get('port')}",
        "http": "exactly this request",
    }.get(question.kind, "exactly this command")
    return "once", f"always in this session: {visible(covered)}", "no"


async def elicit(asked: Sequence[ElicitRequestFormParams], ctx: Context[Any, Any]) -> ElicitResult | None:
    """Ask a client all forms of one question during the call. Return None if the client fails to show one."""
    said: object = None
    for number, each in enumerate(asked, 1):
        try:
            said = await ctx.session.elicit_form(each.message, each.requested_schema, ctx.request_context.request_id)
        except MCPError:
            return None
        if number < len(asked) and chosen(said) != _NEXT[0]:
            return ElicitResult(action="decline")
    return said if isinstance(said, ElicitResult) else None


def requests(name: str, asked: Sequence[ElicitRequestFormParams]) -> dict[str, Any]:
    """Return the forms of one question by name, for a client that has to call again with the answers.

    Args:
        name: The name of the last form, which decides.
        asked: The forms.
    """
    names = [*(f"{name}/{number}" for number in range(1, len(asked))), name]
    return {each: ElicitRequest(params=params) for each, params in zip(names, asked, strict=True)}


def answer_in(answers: Mapping[str, Any], name: str, asked: Sequence[ElicitRequestFormParams]) -> object:
    """Find the answer to one question in a client's answers; None unless each of its parts was confirmed."""
    read = all(chosen(answers.get(f"{name}/{number}")) == _NEXT[0] for number in range(1, len(asked)))
    return answers.get(name) if read else None


def _forms(question: PendingApproval) -> list[ElicitRequestFormParams]:
    if question.kind == "question":
        return [ElicitRequestFormParams(message=question.text, requested_schema=question.arguments["schema"])]
    return forms(f"The code wants to {_DOES[question.kind]}:", question.text, choices(question))


def forms(about: str, text: str, choices: tuple[str, ...]) -> list[ElicitRequestFormParams]:
    """Return the forms for a decision: one, or several for a long text. Return None if the text is too long.

    Args:
        about: The introduction of the text.
        text: The subject of the decision, which must be shown completely.
        choices: The choices of the last form. The other forms only ask whether to continue.
    """
    parts = [text[start : start + MOST] for start in range(0, len(text), MOST)] or [""]
    if len(parts) == 1:
        return [form(f"{about} {text}", choices)]
    if len(parts) > _PARTS:
        return []
    return [
        form(f"Part {number} of {len(parts)}. {about} {part}", choices if number == len(parts) else _NEXT)
        for number, part in enumerate(parts, 1)
    ]


def too_long(text: str) -> str:
    return (
        f"it has {len(text):,} characters, and a person is shown {MOST * _PARTS:,} at most: pass less, by a file for example"
    )


def form(message: str, choices: tuple[str, ...]) -> ElicitRequestFormParams:
    decision = {"type": "string", "title": "Allow it?", "enum": [*choices]}
    schema = {"type": "object", "properties": {"decision": decision}, "required": ["decision"]}
    return ElicitRequestFormParams(message=message, requested_schema=schema)


def chosen(answer: object) -> object:
    """Return the choice that a person made in a `form`; None if it was closed or not shown."""
    if isinstance(answer, ElicitResult) and answer.action == "accept":
        return (answer.content or {}).get("decision")
    return None


def is_stateless(ctx: Context[Any, Any]) -> bool:
    """Return whether questions must be returned to this client, which then calls again."""
    return is_version_at_least(ctx.protocol_version or "", _STATELESS)


def can_ask(ctx: Context[Any, Any]) -> bool:
    """Return whether the client can show questions to a person."""
    known = ctx.client_capabilities
    return known is not None and known.elicitation is not None


def state(ctx: Context[Any, Any]) -> dict[str, Any]:
    """Return the state that this server sent to a client with its questions; the SDK has verified its integrity."""
    found: dict[str, Any] = json.loads(ctx.request_state) if ctx.request_state else {}
    return found
