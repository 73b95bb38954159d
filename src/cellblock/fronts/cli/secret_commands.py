"""The commands requests and secret: what a session's code asked hosts with secrets for, and the secrets themselves."""

from __future__ import annotations

import getpass
import sys
from typing import Annotated

import typer

from cellblock.errors import InvalidInputError
from cellblock.fronts.cli.arguments import TOOLS, Json, Session, new_app
from cellblock.fronts.cli.daemon_access import ask
from cellblock.fronts.cli.output import Columns, finish, finish_list, moment
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
    columns: Columns = {
        "time": lambda one: moment(one["at"]),
        "method": "method",
        "URL": lambda one: one["host"] + one["path"],
        "status": lambda one: one["status"] or "",
        "bytes": "bytes",
        "secrets": lambda one: ", ".join(one["secrets"]),
        "decision": "decision",
    }
    empty = "The session has made no request to a host with secrets or request lines."
    return finish_list("requests", ask(Requests(session, last)), columns, as_json, empty=empty)


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
    return finish({"stored": name}, f"{name} is in the keyring; sessions use it with --secret {name}", as_json)


@secret.command("list")
def list_(session: Session, as_json: Json = False) -> int:
    """List a session's secrets without their values: sources, hosts, places in requests, and times of last use."""
    columns: Columns = {
        "name": "name",
        "source": "source",
        "hosts": lambda one: ", ".join(one["hosts"]),
        "places": lambda one: ", ".join(one["places"]),
        "last used": lambda one: "never" if one["last_used"] is None else moment(one["last_used"]),
    }
    return finish_list("secrets", ask(ListSecrets(session)), columns, as_json, empty="The session has no secrets.")


@secret.command()
def refresh(session: Session, name: _Name, as_json: Json = False) -> int:
    """Read the value of a session's secret again from its source. The code keeps its placeholder."""
    ask(RefreshSecret(session, name))
    return finish({"refreshed": name}, f"{name} was read again", as_json)


@secret.command()
def remove(session: Session, name: _Name, as_json: Json = False) -> int:
    """Remove a secret from a session and its branches. Undo does not reverse it."""
    ask(RemoveSecret(session, name))
    return finish({"removed": name}, f"{name} is removed: requests with its placeholder are refused", as_json)
