"""The commands requests and secret: what a session's code asked hosts with secrets for, and the secrets themselves."""

from __future__ import annotations

from typing import Annotated

import typer

from cellblock.fronts.cli.arguments import TOOLS, Json, Session
from cellblock.fronts.cli.client import ask
from cellblock.fronts.cli.output import moment, print_json, print_table, wants_json
from cellblock.fronts.cli.problems import OK
from cellblock.operations.secrets import Requests

Last = Annotated[int, typer.Option("--last", min=1, max=1000, metavar="N", help="How many requests to show.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the program's."""
    app.command(rich_help_panel=TOOLS)(requests)


def requests(session: Session, last: Last = 50, as_json: Json = False) -> int:
    """List the last requests to hosts that receive secrets, newest last."""
    found = ask(Requests(session, last))
    if wants_json(as_json):
        print_json({"requests": found})
        return OK
    rows = [
        (
            moment(one["at"]),
            one["method"],
            one["host"] + one["path"],
            one["status"] or "",
            one["bytes"],
            ", ".join(one["secrets"]),
            one["decision"],
        )
        for one in found
    ]
    headings = ("time", "method", "URL", "status", "bytes", "secrets", "decision")
    print_table(headings, rows, empty="The session has made no request to a host that receives secrets.")
    return OK
