"""The commands requests and secret: what a session's code asked hosts with secrets for, and the secrets themselves."""

from __future__ import annotations

import getpass
import sys
from typing import Annotated

import typer

from cellblock.errors import InvalidInputError
from cellblock.fronts.cli.arguments import TOOLS, Json, Session, new_app
from cellblock.fronts.cli.daemon_access import ask
from cellblock.fronts.cli.output import moment, print_done, print_json, print_table, wants_json
from cellblock.fronts.cli.problems import OK
from cellblock.operations.secrets import ListSecrets, RefreshSecret, RemoveSecret, Requests

Last = Annotated[int, typer.Option("--last", min=1, max=1000, metavar="N", help="How many requests to show.")]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The secret's name.")]
_MOST = 16 * 1024

secret = new_app("Secrets, whose values stay outside sessions.")


def add_to(app: typer.Typer) -> None:
    """Add these commands to the program's."""
    app.command(rich_help_panel=TOOLS)(requests)
    app.add_typer(secret, name="secret", rich_help_panel=TOOLS)


def requests(session: Session, last: Last = 50, as_json: Json = False) -> int:
    """List the last requests to hosts with secrets or request lines, newest last."""
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
    print_table(headings, rows, empty="The session has made no request to a host with secrets or request lines.")
    return OK


@secret.command("set")
def set_(name: _Name, as_json: Json = False) -> int:
    """Store a secret in the keyring: type the value, or send it to standard input. '--secret NAME' uses it."""
    from cellblock.host.checks import store_secret

    if sys.stdin.isatty():
        value = getpass.getpass(f"Value of {name}: ")
    else:
        try:
            value = sys.stdin.read(_MOST + 3)
        except UnicodeDecodeError:
            raise InvalidInputError(f"the value of secret {name} is not UTF-8 text") from None
    store_secret(name, value)
    print_done({"stored": name}, f"{name} is in the keyring; sessions use it with --secret {name}", as_json)
    return OK


@secret.command("list")
def list_(session: Session, as_json: Json = False) -> int:
    """List a session's secrets without their values: sources, hosts, places in requests, and times of last use."""
    found = ask(ListSecrets(session))
    if wants_json(as_json):
        print_json({"secrets": found})
        return OK
    rows = [
        (
            one["name"],
            one["source"],
            ", ".join(one["hosts"]),
            ", ".join(one["places"]),
            "never" if one["last_used"] is None else moment(one["last_used"]),
        )
        for one in found
    ]
    print_table(("name", "source", "hosts", "places", "last used"), rows, empty="The session has no secrets.")
    return OK


@secret.command()
def refresh(session: Session, name: _Name, as_json: Json = False) -> int:
    """Read the value of a session's secret again from its source. The code keeps its placeholder."""
    ask(RefreshSecret(session, name))
    print_done({"refreshed": name}, f"{name} was read again", as_json)
    return OK


@secret.command()
def remove(session: Session, name: _Name, as_json: Json = False) -> int:
    """Remove a secret from a session and its branches. Undo does not reverse it."""
    ask(RemoveSecret(session, name))
    print_done({"removed": name}, f"{name} is removed: requests with its placeholder are refused", as_json)
    return OK
