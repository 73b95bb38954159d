"""The commands that make, list, restart and end sessions, print their logs, install packages and change the network."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Annotated, Any

import typer

from cellblock.common.terminal import printable
from cellblock.errors import InvalidInputError, NotFoundError
from cellblock.fronts.cli import live
from cellblock.fronts.cli.arguments import (
    FILES,
    SESSIONS,
    Id,
    Json,
    Name,
    OptionalSession,
    Session,
    Sessions,
    makes_sessions,
    pair,
)
from cellblock.fronts.cli.daemon_access import ask, chosen, connect, connected, session_options
from cellblock.fronts.cli.output import Columns, finish, finish_list, moment, painted, print_fields, print_json, since
from cellblock.fronts.cli.problems import FAILED, OK, report
from cellblock.fronts.cli.progress import Progress
from cellblock.operations.asking import change_of
from cellblock.operations.executions import Executions, Follow, Lookup, Source
from cellblock.operations.files import Install
from cellblock.operations.network import ShowNetwork
from cellblock.operations.sessions import Create, Destroy, Interrupt, List, Restart, Status, Wipe
from cellblock.service.daemon.daemon_connection import SessionConnection

Hosts = list[str] | None
_EVERY = 0.3
"""Seconds between two polls for new executions."""


def add_to(app: typer.Typer) -> None:
    """Add these commands to the program's."""
    app.command("list", rich_help_panel=SESSIONS)(list_)
    app.command("ls", hidden=True)(list_)
    for command in (create, status, logs, interrupt, restart, destroy, wipe, network):
        app.command(rich_help_panel=SESSIONS)(command)
    app.command("install", rich_help_panel=FILES)(install)


@makes_sessions
def create(
    argument: OptionalSession = None,
    name: Name = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="A label. Can be repeated.")] = None,
    durable: Annotated[bool, typer.Option("--durable", help="Save it between cells, so that it survives a reboot.")] = False,
    *,
    options: dict[str, Any],
    as_json: Json = False,
) -> int:
    """Make a session. If you give no name, it gets a unique one."""
    wanted = None if argument is None and name is None else chosen(argument, name)
    given = ({"durable": True} if durable else {}) | options
    tags = dict(pair("--tag", text) for text in tag or [])
    with Progress("making the session"):
        made = ask(Create(wanted or "", session_options(given), tags, fresh=True))
    return finish(made, partial(_print_session, made), as_json)


def list_(
    refresh: Annotated[bool, typer.Option("--refresh", help="Check first whether the kernels are alive.")] = False,
    as_json: Json = False,
) -> int:
    """List the sessions."""
    columns: Columns = {
        "name": "name",
        "status": "status",
        "age": lambda one: since(one["created_at"]),
        "last used": lambda one: since(one["last_used_at"]),
        "workspace": "workspace",
    }
    return finish_list("kernels", ask(List(refresh)), columns, as_json, empty="There are no sessions.")


def status(argument: OptionalSession = None, name: Name = None, session_id: Id = None, as_json: Json = False) -> int:
    """Show a session's status. Exit with 1 if its kernel is dead."""
    found = ask(Status(chosen(argument, name, session_id)))
    alive = found["status"] in ("running", "idle")
    data = {"alive": alive, "kernel": found}
    return finish(data, partial(_print_session, found), as_json, OK if alive else FAILED)


def interrupt(argument: OptionalSession = None, name: Name = None, session_id: Id = None, as_json: Json = False) -> int:
    """Stop what runs in a session. Exit with 1 if nothing ran."""
    with Progress("stopping what runs"):
        interrupted = ask(Interrupt(chosen(argument, name, session_id)))
    shown = "interrupted" if interrupted else "Nothing ran."
    return finish({"interrupted": interrupted}, shown, as_json, OK if interrupted else FAILED)


def restart(argument: OptionalSession = None, name: Name = None, session_id: Id = None, as_json: Json = False) -> int:
    """Restart a session's kernel. Its variables are lost."""
    with Progress("restarting"):
        found = ask(Restart(chosen(argument, name, session_id)))
    return finish(found, partial(_print_session, found), as_json)


def destroy(sessions: Sessions = None, name: Name = None, session_id: Id = None, as_json: Json = False) -> int:
    """End sessions. Exit with 1 if one does not exist."""
    wanted = [*dict.fromkeys(sessions or ())]
    if len(wanted) < 2 or name is not None or session_id is not None:
        wanted = [chosen(*wanted, name, session_id)]
    ended: list[str] = []
    missing: list[str] = []
    with connected() as connection:
        for one in wanted:
            with Progress(f"ending {one}"):
                (ended if connection.call(Destroy(one)) else missing).append(one)
        if len(wanted) == 1:
            finish({"destroyed": bool(ended)}, "ended" if ended else "", as_json)
        else:
            finish({"destroyed": ended, "missing": missing}, f"{len(ended)} ended" if ended else "", as_json)
        for number, one in enumerate(missing, 1):
            try:
                connection.call(Status(one))  # the error says more than "not found"
            except NotFoundError as error:
                if number == len(missing):
                    raise
                report(error)
    return FAILED if missing else OK


def wipe(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> int:
    """End all sessions. In a terminal, ask first."""
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        count = len(ask(List()))
        if not typer.confirm(f"End all sessions ({count}), with everything in their variables?"):
            return FAILED
    with Progress("ending all sessions"):
        destroyed = ask(Wipe())
    return finish({"destroyed": destroyed}, f"{len(destroyed)} ended", as_json)


def logs(
    session: OptionalSession = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Then follow new executions until Ctrl-C.")] = False,
    last: Annotated[int, typer.Option("--last", "-n", metavar="N", min=1, max=1000, help="How many executions to show.")] = 20,
    execution: Annotated[str | None, typer.Option("--execution", metavar="ID", help="Show this execution only.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Print what ran in a session, with its output."""
    if (session is None) == (execution is None):
        raise InvalidInputError("name one session, or one execution with --execution ID")
    if execution is not None:
        return _show_log(execution, follow=follow, as_json=as_json)
    return _show_logs(session or "", last, follow=follow, as_json=as_json)


def install(
    session: Session,
    packages: Annotated[list[str], typer.Argument(metavar="PACKAGE...", help="Requirements, as pip takes them.")],
    as_json: Json = False,
) -> int:
    """Install packages in a session."""
    with Progress(f"installing {' '.join(packages)}"):
        result = ask(Install(session, tuple(packages)))
    return finish(result, partial(_print_output, result), as_json, OK if result["status"] == "success" else FAILED)


def _print_output(result: dict[str, Any]) -> None:
    reader = live.Terminal()
    for name, text in (("stdout", result["output"]), ("stderr", result["stderr"])):
        reader.take("stream", {"name": name, "text": text}, "")
    reader.end(result)


def _print_session(record: dict[str, Any]) -> None:
    fields = ("name", "kernel_id", "status", "workspace", "isolate", "kernel_type")
    shown = [(field.replace("kernel_id", "id"), record[field]) for field in fields]
    shown.append(("created", f"{since(record['created_at'])} ago"))
    if record["tags"]:
        shown.append(("tags", ", ".join(f"{key}={value}" for key, value in record["tags"].items())))
    print_fields(shown)


def network(
    session: Session,
    allow: Annotated[Hosts, typer.Option("--allow", metavar="HOST", help="Allow this host. Repeatable.")] = None,
    deny: Annotated[Hosts, typer.Option("--deny", metavar="HOST", help="Deny this host, even if it is allowed.")] = None,
    allow_http: Annotated[
        Hosts, typer.Option("--allow-http", metavar="LINE", help="Add this request line, such as 'GET api.example.org/**'.")
    ] = None,
    remove: Annotated[Hosts, typer.Option("--remove", metavar="LINE", help="Remove this line from the lists.")] = None,
    expect: Annotated[
        int | None, typer.Option("--expect", metavar="REVISION", min=0, help="Change nothing if the revision is another one.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Show which hosts and requests a session and its branches can reach, or change that at once.

    Connections to hosts that are no longer allowed are reset.
    """
    changes = bool(allow or deny or allow_http or remove)
    if changes or expect is not None:
        shown = ask(change_of(session, allow or (), deny or (), allow_http or (), remove or (), expect, by="terminal"))
    else:
        shown = ask(ShowNetwork(session))
    lines = [printable(line, lines=False) for line in _described(shown)]
    closed = [f"{shown['closed']} connections closed"] if changes else []
    return finish(shown, "\n".join([*lines, *closed]), as_json)


def _described(shown: Mapping[str, Any]) -> list[str]:
    lines = [f"{name:5}  {line}" for name in ("allow", "deny", "http") for line in shown[name]]
    others = "a person is asked" if shown["ask"] else "refused"
    return [*lines, f"other hosts: {others}; revision {shown['revision']}"]


def _show_logs(session: str, count: int, *, follow: bool, as_json: bool) -> int:
    """Print the last executions of a session, oldest first.

    Args:
        session: The session's name or id.
        count: The number of executions.
        follow: Whether to wait for further executions, until Ctrl-C.
        as_json: Whether to print JSON, in one document.

    Raises:
        CellblockError: The session does not exist.
    """
    with connected() as connection:
        records = connection.call(Executions(session, count))[::-1]
        if as_json:
            print_json([_as_data(connection, record) for record in records])
            return OK
        shown = set()
        while True:
            for record in records:
                if record["id"] not in shown:
                    shown.add(record["id"])
                    _show_execution(connection, record, follow=follow)
            if not follow:
                return OK
            time.sleep(_EVERY)  # the daemon has no request that waits for new executions
            records = connection.call(Executions(session, 50))[::-1]


def _show_log(execution: str, *, follow: bool, as_json: bool) -> int:
    with connected() as connection:
        record = connection.call(Lookup(execution))
        if as_json:
            print_json(_as_data(connection, record))
        else:
            _show_execution(connection, record, follow=follow)
    return OK


def _as_data(connection: SessionConnection, record: dict[str, Any]) -> dict[str, Any]:
    events = _events(record) if record["state"] in ("done", "unknown") else []
    result = next((event["data"] for event in events if event["kind"] == "result"), None)
    return {**record, "code": connection.call(Source(record["id"])), "result": result}


def _events(record: dict[str, Any]) -> list[dict[str, Any]]:
    with closing(connect()) as connection:
        return list(connection.follow(Follow(record["id"])))


def _show_execution(connection: SessionConnection, record: dict[str, Any], *, follow: bool) -> None:
    """Print an execution's time, code and output. With `follow`, wait for the end of a running one."""
    at = moment(record["begun"] or record["submitted"])
    state = record["state"]
    print(painted(f"── {at}  {record['id']}{'' if state == 'done' else f'  {state}'}", "dim", sys.stdout))
    for line in connection.call(Source(record["id"])).splitlines():
        print(painted(f"> {printable(line)}", "bold", sys.stdout))
    sys.stdout.flush()
    if state in ("done", "unknown") or follow:
        with closing(connect()) as another:
            _follow_execution(another, record["id"])


def _follow_execution(connection: SessionConnection, execution: str) -> None:
    reader, streamed = live.Terminal(errors=sys.stdout), False
    for event in connection.follow(Follow(execution)):
        kind, data = event["kind"], event["data"]
        if kind in ("stream", "display", "gap"):
            streamed = True
            reader.take(kind, data, execution)
        elif kind == "result":
            _end(reader, data, streamed)
        elif kind == "failed":
            print(f"{data['error']}: {printable(data['message'])}")


def _end(reader: live.Terminal, result: dict[str, Any], streamed: bool) -> None:
    """Print the rest of the output, or all of it if it was not streamed."""
    if not streamed:
        for item in result["outputs"]:
            reader.take("display", item, "")
    reader.end(result)
