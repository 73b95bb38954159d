"""``cellblock tokens``: creates, lists and revokes tokens for ``cellblock serve``."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from cellblock.common.terminal import printable
from cellblock.fronts.cli.arguments import Json, known_names, new_app
from cellblock.fronts.cli.output import Columns, finish, finish_list, moment, wants_json
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
    finish({"token": text, **token.to_dict()}, text, as_json)
    if not wants_json(as_json):
        say("It cannot be shown again. Clients send it as 'Authorization: Bearer TOKEN'.")
    return OK


@app.command("list")
def list_(as_json: Json = False) -> int:
    """List the tokens, without their secrets."""
    from cellblock.service.store.tokens import Tokens

    found = [token.to_dict() for token in Tokens().all()]
    columns: Columns = {
        "id": "id",
        "name": "name",
        "scopes": lambda one: ", ".join(one["scopes"]),
        "sessions": lambda one: one["session"] or "all",
        "expires": lambda one: _expiry(one["expires"]),
    }
    return finish_list("tokens", found, columns, as_json, empty="There are no tokens.")


def _expiry(expires: float | None) -> str:
    if expires is None:
        return "never"
    return "expired" if expires < time.time() else moment(expires)


@app.command()
def revoke(number: Annotated[str, typer.Argument(metavar="ID", help="See 'list'.")], as_json: Json = False) -> int:
    """Revoke a token. It is refused from now on."""
    from cellblock.service.store.tokens import Tokens

    name = Tokens().revoke(number).name
    return finish({"revoked": number, "name": name}, f"{printable(name, lines=False)} is revoked", as_json)
