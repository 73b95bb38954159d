"""``cellblock tools``: registers MCP servers, generates typed APIs for their tools, and logs in with OAuth."""

from __future__ import annotations

import os
import select
import socket
import sys
import webbrowser
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellblock.common import config
from cellblock.common.extras import require_extra
from cellblock.common.terminal import printable
from cellblock.errors import InvalidInputError, NotFoundError
from cellblock.fronts.cli.arguments import Json, new_app
from cellblock.fronts.cli.output import finish, moment, print_fields, print_table
from cellblock.fronts.cli.problems import FAILED, OK, say
from cellblock.fronts.cli.progress import Progress

if TYPE_CHECKING:
    from cellblock.tools.mcp.params import RemoteServer, ServerParams

app = new_app("Make tools of MCP servers callable in sessions.")

Root = Annotated[str, typer.Option("--root", metavar="DIR", help="The folder of the generated packages.")]
Pairs = list[str] | None
Server = Annotated[str, typer.Argument(metavar="NAME", help="The server's name.")]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the URL, and read the address where the browser ends.")]


@app.command(context_settings={"allow_interspersed_args": False})
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of its package in code.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND ARGS", help="The program that is the server.")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="The address of a server over HTTP.")] = None,
    env: Annotated[
        Pairs,
        typer.Option(
            "--env",
            metavar="NAME=VALUE",
            help="A variable for the program; ${NAME} inserts a variable of this process.",
        ),
    ] = None,
    header: Annotated[
        Pairs, typer.Option("--header", metavar="NAME=VALUE", help="A header for the URL; ${NAME} works, too.")
    ] = None,
    sandbox: Annotated[bool, typer.Option("--sandbox", help="Run the program in a sandbox.")] = False,
    root: Root = "mcptools",
    as_json: Json = False,
) -> int:
    """Generate a typed API for a server's tools, and register the server."""
    import asyncio

    from cellblock.tools.apigen.generate import generate_mcp_sources

    program = command or []
    if program and program[0] != "--" and program[0].startswith("-"):
        raise InvalidInputError(f"options come before NAME: cellblock tools add {program[0]} … {printable(name, lines=False)}")
    params = _params(program[1:] if program[:1] == ["--"] else program, url, env or [], header or [], sandbox)
    with Progress(f"asking {name} for its tools") as progress:
        left_out: dict[str, str] = {}

        def on_progress(done: int, total: int) -> None:
            progress.text = f"writing {name}: {done} of {total} tools"

        try:
            generated = generate_mcp_sources(name, params, root, on_progress=on_progress, on_left_out=left_out.__setitem__)
            modules = asyncio.run(generated)
        except OSError as error:
            raise InvalidInputError(f"{root} cannot be written: {error.strerror}") from error
    package = os.path.join(os.path.abspath(root), name)
    data = {"server": name, "package": package, "modules": modules, "left_out": left_out}
    return finish(data, partial(_print_added, name, root, modules, left_out), as_json)


def _print_added(name: str, root: str, modules: list[str], left_out: Mapping[str, str]) -> None:
    for tool, why in left_out.items():
        say(f"cellblock: {printable(tool, lines=False)} is left out: {printable(why, lines=False)}")
    print(f"{name} has {len(modules)} tools, in {printable(os.path.join(root, name), lines=False)}")


def _params(command: list[str], url: str | None, env: list[str], header: list[str], sandbox: bool) -> dict[str, Any]:
    """Return the parameters of a server, for `generate_mcp_sources`."""
    if bool(command) == (url is not None):
        raise InvalidInputError("name the server: either -- COMMAND ARGS..., or --url URL")
    if url is not None:
        if env or sandbox:
            raise InvalidInputError("--env and --sandbox are for a server that is a program, not for --url")
        return {"url": url, **({"headers": _pairs("--header", header)} if header else {})}
    if header:
        raise InvalidInputError("--header needs --url")
    params: dict[str, Any] = {"command": command[0], "args": command[1:]}
    return params | ({"env": _pairs("--env", env)} if env else {}) | ({"sandbox": True} if sandbox else {})


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise InvalidInputError(f"{option} takes NAME=VALUE; something without a name or '=' was given")
    return {key: value for key, _, value in pairs}


@app.command("list")
def list_(root: Root = "mcptools", as_json: Json = False) -> int:
    """List the registered servers, and the tools of each below this folder."""
    from cellblock.tools.calling import search
    from cellblock.tools.registry.servers import ServerRegistry

    paths = [tool.path for tool in search.tools(root)]
    registry = ServerRegistry()
    names = registry.names()
    registered = [{"name": name, "root": root, "digest": digest} for name, root, digest in registry.all()]
    rows = [(name, sum(1 for path in paths if path.startswith(f"{name}."))) for name in names]
    empty = "No server is registered: 'cellblock tools add' registers one."
    show = partial(print_table, ("server", f"tools in {root}"), rows, empty=empty)
    return finish({"servers": names, "registered": registered, "tools": paths}, show, as_json)


@app.command()
def remove(name: Annotated[str, typer.Argument(metavar="NAME")], as_json: Json = False) -> int:
    """Unregister a server, and log out from it. Its generated package stays."""
    from cellblock.tools.registry.servers import ServerRegistry

    with closing(ServerRegistry()) as registry:
        for root in [root for known, root, _ in registry.all() if known == name]:
            log_out(name, registry.get(name, root))
        registry.remove(name)
    done = f"{printable(name, lines=False)} is no longer registered; its generated package stays until you remove it"
    return finish({"removed": name}, done, as_json)


@app.command("search")
def search_(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORDS", help="Words to search for; without them, all tools are listed.")
    ] = None,
    root: Root = "mcptools",
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Maximum number of tools.")] = 20,
    as_json: Json = False,
) -> int:
    """Find tools by words, best match first. Exit with 1 if no tool matches."""
    from cellblock.tools.calling import search

    paths = search.names(" ".join(words or []), root, limit)
    found = [{"tool": path, "signature": "".join(search.signatures(path, root_dir=root))} for path in paths]
    lines = "\n".join(printable(one["signature"], lines=False) for one in found)
    return finish(found, lines or f"No tool in {printable(root, lines=False)} matches.", as_json, OK if found else FAILED)


@app.command()
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


@app.command()
def logout(name: Server, as_json: Json = False) -> int:
    """Remove the login at a server."""
    if not log_out(name, _registered(name)[0]):
        raise NotFoundError(f"there is no login at {name!r}")
    return finish({"logged_out": name}, f"{printable(name, lines=False)} is logged out", as_json)


@app.command()
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
