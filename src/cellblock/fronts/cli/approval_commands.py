"""``cellblock approvals``: shows pending and past decisions, and decides."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellblock.common.terminal import printable
from cellblock.errors import CellblockError, InvalidInputError
from cellblock.fronts.cli.arguments import Json, known_names, new_app
from cellblock.fronts.cli.daemon_access import ask
from cellblock.fronts.cli.forms import fields_of, read_answer
from cellblock.fronts.cli.output import age, finish, finish_list, moment, painted
from cellblock.fronts.cli.problems import FAILED, OK, say
from cellblock.fronts.where import open_if_running
from cellblock.operations.approvals import Allowed, Decide, Pending, Revoke
from cellblock.operations.sessions import List

if TYPE_CHECKING:
    from cellblock.model.decisions import Decision

app = new_app("Decide about tool calls, commands and hosts, and see what was decided.", no_args_is_help=False)
_MAX_SHOWN = 200  # characters of a call
_SHORTEST = 6  # characters of an id prefix that can stand for the id
_CUT = "only the beginning of its arguments is on record"

Last = Annotated[int, typer.Option("--last", min=1, max=10**9, metavar="N", help="How many decisions to show.")]
_SESSION = typer.Option("--session", metavar="NAME", help="Only for this session (name or id).", autocompletion=known_names)
SessionId = Annotated[str | None, _SESSION]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids, from 'cellblock approvals pending'.")]
All = Annotated[bool, typer.Option("--all", help="Decide about all pending requests.")]


@app.callback(invoke_without_command=True)
def main(context: typer.Context, last: Last = 20, session: SessionId = None, as_json: Json = False) -> int:
    """List, allow and deny requests, and show recorded decisions. Without a command: as 'list'."""
    return list_(last, session, as_json) if context.invoked_subcommand is None else OK


@app.command("list")
def list_(last: Last = 20, session: SessionId = None, as_json: Json = False) -> int:
    """List recorded decisions, newest last."""
    from cellblock.tools.registry.approvals import Approvals

    names = _names()
    wanted = next((number for number, name in names.items() if name == session), session)
    with Approvals() as trail:
        decisions = trail.last(last, session=wanted)[::-1]
    empty = "No decision is recorded." if session is None else f"No decision of session {printable(session)} is recorded."
    lines = "\n".join(_line(decision, names) for decision in decisions)
    return finish([_as_data(decision, names) for decision in decisions], lines or empty, as_json)


def _line(decision: Decision, names: Mapping[str, str]) -> str:
    by = f"{decision.by}: {decision.reason}" if decision.reason else decision.by
    name = names.get(decision.session, decision.session)
    line = f"{moment(decision.at)}  {name}  {decision.outcome:5}  {_shown(decision)}  ({by})"
    return printable(line, lines=False)


def _shown(decision: Decision) -> str:
    """Return a decision's subject in one line, with a mark if it was cut."""
    from cellblock.tools.approvals.request import visible  # imports asyncio, which --help does not need

    call = visible(f"{decision.server}.{decision.tool} {decision.payload.decode(errors='replace')}")
    left_out = []
    if len(call) > _MAX_SHOWN:
        left_out.append(f"{len(call) - _MAX_SHOWN:,} more characters: --json shows them")
    if not _is_whole(decision):
        left_out.append(_CUT)
    return f"{call[:_MAX_SHOWN]}… [{'; '.join(left_out)}]" if left_out else call


def _is_whole(decision: Decision) -> bool:
    """Return whether the record has all arguments: long ones are cut."""
    try:
        json.loads(decision.payload)
    except ValueError:
        return False
    return True


def _names() -> dict[str, str]:
    """Return the names of existing sessions by id; empty if no daemon runs, because decisions can be shown without names."""
    with suppress(CellblockError):
        if (connection := open_if_running()) is not None:
            with closing(connection):
                return {record["kernel_id"]: record["name"] for record in connection.call(List())}
    return {}


def _as_data(decision: Decision, names: Mapping[str, str]) -> dict[str, object]:
    fields = ("at", "session", "kind", "server", "tool", "outcome", "by", "reason")
    arguments = decision.payload.decode(errors="replace")  # text, because only the start of long arguments is stored
    return {name: getattr(decision, name) for name in fields} | {
        "session_name": names.get(decision.session, ""),
        "arguments": arguments,
        "complete": _is_whole(decision),
    }


@app.command()
def pending(
    session: Annotated[str, _SESSION] = "",
    as_json: Json = False,
) -> int:
    """List pending requests, oldest first."""
    found = ask(Pending(session))
    # No table, which would cut the arguments.
    return finish({"pending": found}, "\n".join(map(_lines, found)) or "Nothing waits for a decision.", as_json)


def _lines(pending: Mapping[str, Any]) -> str:
    about = f"{pending['id']}  {pending['session_name']}  {age(time.time() - pending['since'])}"
    text = str(pending["text"])
    form = f" ({fields_of(pending)})" if pending["kind"] == "question" else ""
    return f"{painted(printable(about, lines=False), 'dim', sys.stdout)}\n  {printable(text + form, lines=False)}"


@app.command()
def allow(
    ids: Ids = None,
    every: All = False,
    always: Annotated[
        str, typer.Option("--always", metavar="tool|call", help="Also allow the same for the rest of the session.")
    ] = "",
    answer: Annotated[
        str, typer.Option("--answer", metavar="JSON", help="Values by field, if an MCP server asks for input.")
    ] = "",
    as_json: Json = False,
) -> int:
    """Allow requests, or answer an MCP server. Exit with 1 if a request has ended."""
    return _decide(ids or [], every, as_json, allow=True, always=always, answer=answer)


@app.command()
def deny(
    ids: Ids = None,
    every: All = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="The reason. The code sees it.")] = "",
    as_json: Json = False,
) -> int:
    """Deny requests. Exit with 1 if a request has ended."""
    return _decide(ids or [], every, as_json, allow=False, reason=reason)


def _decide(
    ids: list[str], every: bool, as_json: bool, *, allow: bool, always: str = "", answer: str = "", reason: str = ""
) -> int:
    if bool(ids) == every:
        raise InvalidInputError("name the requests by ids from 'cellblock approvals pending', or pass --all")
    waiting = ask(Pending())
    known = [each["id"] for each in waiting]
    # Each question needs its own answer.
    chosen = [each["id"] for each in waiting if not allow or each["kind"] != "question"]
    if not every:
        chosen = [_complete(each, known) for each in ids]
    filled_in = read_answer(answer) if answer else {}
    decided = ask(Decide(tuple(chosen), allow, always, by="terminal", answer=filled_in, reason=reason)) if chosen else []
    finish({"decided": decided}, f"{len(decided)} {'allowed' if allow else 'denied'}", as_json)
    return _all_of(chosen, decided, "not waiting", "pending")


def _all_of(chosen: list[str], done: list[str], why: str, where: str) -> int:
    """Print the ids that no longer wait, and the command that lists the others; return the exit status."""
    if missing := [each for each in chosen if each not in done]:
        say(f"cellblock: {why}: {', '.join(missing)} (see 'cellblock approvals {where}')")
        return FAILED
    return OK


def _complete(given: str, known: list[str]) -> str:
    """Return the only id with this prefix. A short prefix could accidentally mean a later request."""
    found = [each for each in known if each.startswith(given) and len(given) >= _SHORTEST]
    return found[0] if len(found) == 1 else given


@app.command()
def allowed(
    session: Annotated[str, _SESSION] = "",
    as_json: Json = False,
) -> int:
    """List permissions for the rest of a session."""
    columns = {"id": "id", "session": "session_name", "scope": "scope", "given for": "text", "by": "by"}
    return finish_list("allowed", ask(Allowed(session)), columns, as_json, empty="There are no permissions.")


@app.command()
def revoke(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids from 'allowed'.")],
    as_json: Json = False,
) -> int:
    """Revoke permissions. Exit with 1 if an id is unknown."""
    known = [each["id"] for each in ask(Allowed())]
    chosen = [_complete(each, known) for each in ids]
    revoked = ask(Revoke(tuple(chosen)))
    finish({"revoked": revoked}, f"{len(revoked)} revoked", as_json)
    return _all_of(chosen, revoked, "not allowed", "allowed")
