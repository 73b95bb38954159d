"""``cellblock tools login``, ``logout`` and ``auth``: logins at MCP servers with OAuth."""

from __future__ import annotations

import os
import select
import socket
import sys
import webbrowser
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from cellblock.common import config
from cellblock.common.extras import require_extra
from cellblock.common.terminal import printable
from cellblock.errors import InvalidInputError, NotFoundError
from cellblock.fronts.cli.arguments import Json
from cellblock.fronts.cli.output import finish, moment, print_fields
from cellblock.fronts.cli.problems import say

if TYPE_CHECKING:
    from cellblock.tools.mcp.params import RemoteServer, ServerParams

Server = Annotated[str, typer.Argument(metavar="NAME", help="The server's name.")]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the URL, and read the address where the browser ends.")]


def login(name: Server, no_browser: NoBrowser = False, as_json: Json = False) -> int:
    """Log in at a server with OAuth, and generate the API for its tools."""
    require_extra("mcp", "tools")
    import asyncio

    from cellblock.tools.apigen.generate import generate_mcp_sources
    from cellblock.tools.mcp.oauth_login import by_browser, log_in
    from cellblock.tools.mcp.params import OAuth

    params, resolved, root = _registered(name)
    params, resolved = (replace(each, auth=each.auth or OAuth()) for each in (params, resolved))

    async def ask(url: str, listener: socket.socket, is_answer: Callable[[str], bool]) -> str:
        return _pasted(url, listener) if no_browser else await by_browser(url, listener, is_answer, _show)

    login = asyncio.run(log_in(name, resolved, ask))
    say(f"cellblock: logged in at {printable(login.issuer, lines=False)}")
    modules = asyncio.run(generate_mcp_sources(name, params.to_dict(), root))
    done = {"server": name, "issuer": login.issuer, "scopes": login.scopes, "modules": modules}
    sentence = f"{name} has {len(modules)} tools, in {printable(os.path.join(root, name), lines=False)}"
    return finish(done, sentence, as_json)


def logout(name: Server, as_json: Json = False) -> int:
    """Remove the login at a server."""
    if not log_out(name, _registered(name)[0]):
        raise NotFoundError(f"there is no login at {name!r}")
    return finish({"logged_out": name}, f"{printable(name, lines=False)} is logged out", as_json)


def auth(name: Server, as_json: Json = False) -> int:
    """Show the login at a server. Exit with 1 without a login."""
    from cellblock.tools.mcp.logins import LoginStore, needs_login

    params, resolved, _ = _registered(name)
    if (login := LoginStore(name, resolved).read()) is None:
        raise NotFoundError(needs_login(name))
    renewed = bool(login.token.get("refresh_token"))
    shown = {"server": name, "url": params.url, "issuer": login.issuer, "scopes": login.scopes, "missing": [*login.missing]}
    expires = "unknown" if login.expires is None else moment(login.expires)
    lists = {key: " ".join(shown[key]) or "-" for key in ("scopes", "missing")}
    fields = shown | lists | {"expires": expires, "renewed": "yes" if renewed else "no"}
    return finish(shown | {"expires": login.expires, "renewed": renewed}, partial(print_fields, fields.items()), as_json)


def log_out(name: str, params: ServerParams) -> bool:
    """Remove the login at a server; return whether there was one."""
    import asyncio

    from cellblock.tools.mcp.logins import LoginStore
    from cellblock.tools.mcp.params import RemoteServer, resolve

    resolved = resolve(params, config.server_environment(), server_name=name)
    if not isinstance(resolved, RemoteServer):
        return False
    return asyncio.run(LoginStore(name, resolved).log_out())


def _registered(name: str) -> tuple[RemoteServer, RemoteServer, str]:
    """Return a server's parameters, the same resolved, and its root: below the current directory, or registered last."""
    from cellblock.tools.mcp.params import RemoteServer, resolve
    from cellblock.tools.registry.servers import ServerRegistry

    with closing(ServerRegistry()) as registry:
        root = registry.root_within(name, os.getcwd()) or registry.root_within(name, "/")
        params = registry.get(name, root)
    resolved = resolve(params, config.server_environment(), server_name=name)
    if not isinstance(params, RemoteServer) or not isinstance(resolved, RemoteServer) or params.has_key:
        raise InvalidInputError(f"MCP server {name!r} has no login: it is a program, or has the header Authorization")
    return params, resolved, root or ""


def _show(url: str) -> None:
    """Open the browser, and print the URL in any case: the browser may be invisible."""
    say(f"Log in on this page, in a browser on this machine (for others, --no-browser): {printable(url, lines=False)}")
    webbrowser.open(url)


def _pasted(url: str, listener: socket.socket) -> str:
    """Print the URL of the login, and read the redirect URL that the person pastes."""
    from cellblock.tools.mcp.oauth_login import SECONDS_TO_ANSWER

    listener.close()
    say(f"Log in on this page: {printable(url, lines=False)}")
    say("The browser then ends at a page that cannot be loaded. Paste the address of that page here:")
    # A thread that reads would outlive the deadline.
    if not select.select([sys.stdin], [], [], SECONDS_TO_ANSWER)[0] or not (line := sys.stdin.readline().strip()):
        raise InvalidInputError("no address was pasted, so the login failed: run the command again")
    return line
