"""``cellblock network``: shows which hosts a session can reach, and changes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cellblock.common.terminal import printable
from cellblock.fronts.cli.arguments import SESSIONS, Json, Session
from cellblock.fronts.cli.daemon_access import ask
from cellblock.fronts.cli.output import finish
from cellblock.operations.asking import change_of
from cellblock.operations.network import ShowNetwork

Hosts = list[str] | None


def add_to(app: typer.Typer) -> None:
    """Add this command to the program's."""
    app.command("network", rich_help_panel=SESSIONS)(network)


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
