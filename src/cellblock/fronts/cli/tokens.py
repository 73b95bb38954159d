"""``cellblock tokens``: creates, lists and revokes tokens for ``cellblock serve``."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from cellblock.common.terminal import printable
from cellblock.fronts.cli.arguments import Json, known_names, new_app
from cellblock.fronts.cli.output import moment, print_done, print_json, print_table, wants_json
from cellblock.fronts.cli.problems import OK, say

app = new_app("Tokens for clients of 'cellblock serve'.")
_DAY = 86400.0


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for it, to tell it from others.")],
    scope: Annotated[
        list[str] | None, typer.Option(metavar="SCOPE", help="read, run, approve or admin. Can be repeated; run by default.")
    ] = None,
    session: Annotated[
        str, typer.Option(metavar="NAME", help="Allow this session only, which must exist.", autocompletion=known_names)
    ] = "",
    days: Annotated[float | None, typer.Option(metavar="DAYS", help="Days until it expires; never by default.")] = None,
    as_json: Json = False,
) -> int:
    """Make a token. It is shown once."""
    from cellblock.service.store.tokens import Tokens

    if session:
        from cellblock.fronts.cli.daemon_access import ask
        from cellblock.operations.sessions import Status

        session = ask(Status(session))["kernel_id"]  # a later session of this name would be a different one
    text, token = Tokens().create(name, scope or ("run",), session=session, lifetime=None if days is None else days * _DAY)
    if wants_json(as_json):
        print_json({"token": text, **token.to_dict()})
    else:
        print(text)
        say("It cannot be shown again. Clients send it as 'Authorization: Bearer TOKEN'.")
    return OK


@app.command("list")
def list_(as_json: Json = False) -> int:
    """List the tokens, without their secrets."""
    from cellblock.service.store.tokens import Tokens

    found = [token.to_dict() for token in Tokens().all()]
    if wants_json(as_json):
        print_json({"tokens": found})
        return OK
    rows = [
        (each["id"], each["name"], ", ".join(each["scopes"]), each["session"] or "all", _expiry(each["expires"]))
        for each in found
    ]
    print_table(("id", "name", "scopes", "sessions", "expires"), rows, empty="There are no tokens.")
    return OK


def _expiry(expires: float | None) -> str:
    if expires is None:
        return "never"
    return "expired" if expires < time.time() else moment(expires)


@app.command()
def revoke(number: Annotated[str, typer.Argument(metavar="ID", help="See 'list'.")], as_json: Json = False) -> int:
    """Revoke a token. It is refused from now on."""
    from cellblock.service.store.tokens import Tokens

    name = Tokens().revoke(number).name
    print_done({"revoked": number, "name": name}, f"{printable(name, lines=False)} is revoked", as_json)
    return OK
