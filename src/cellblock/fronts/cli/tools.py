"""``cellblock tools``: registers MCP servers, and generates typed APIs for their tools."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Annotated, Any

import typer

from cellblock.common.terminal import printable
from cellblock.errors import InvalidInputError
from cellblock.fronts.cli import logins
from cellblock.fronts.cli.arguments import Json, new_app
from cellblock.fronts.cli.output import finish, print_table
from cellblock.fronts.cli.problems import FAILED, OK, say
from cellblock.fronts.cli.progress import Progress

app = new_app("Make tools of MCP servers callable in sessions.")

Root = Annotated[str, typer.Option("--root", metavar="DIR", help="The folder of the generated packages.")]
Pairs = list[str] | None


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
            logins.log_out(name, registry.get(name, root))
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


app.command()(logins.login)
app.command()(logins.logout)
app.command()(logins.auth)
