"""Generates a typed Python API for an MCP server: lists its tools, writes a package, registers it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from cellblock.errors import McpServerError
from cellblock.tools.apigen.names import check_server_name
from cellblock.tools.apigen.package import tools_hash, write_package
from cellblock.tools.calling.content import ToolSpec
from cellblock.tools.mcp.changes import ToolFacts, facts_of
from cellblock.tools.mcp.params import OAuth, RemoteServer, ServerParams, parse_params
from cellblock.tools.mcp.place import files_within, made_absolute
from cellblock.tools.mcp.servers import Servers
from cellblock.tools.registry.servers import ServerRegistry

_LOG = logging.getLogger("cellblock.tools")


async def generate_mcp_sources(
    server_name: str,
    server_params: Mapping[str, Any],
    root_dir: str | os.PathLike[str],
    *,
    connect_timeout: float = 30.0,
    registry: ServerRegistry | None = None,
    on_progress: Callable[[int, int], object] | None = None,
    on_left_out: Callable[[str, str], object] | None = None,
) -> list[str]:
    """Generate a typed Python API for the tools of an MCP server, and register the server for calls.

    Each tool gets a module in the package ``root_dir/server_name``: ``Params``, ``run(params)``, ``run_async(params)``, and
    ``Result`` if the tool declares its result. An older package is replaced atomically, or left unchanged if it is
    identical. The package contains the server's name; the parameters stay in the registry, on the trusted side.

    Args:
        server_name: The name of the package, and of the server in code: a Python identifier.
        server_params: ``command``, ``args`` and ``env`` of a program, or ``url``, ``headers`` and ``auth``. ``${NAME}`` is
            replaced from the environment on each connection. A program starts in an empty directory, unless ``cwd`` names
            another. Paths that begin with a dot, and scripts, are relative to the caller's current directory. ``sandbox``
            puts a program into a native sandbox: True for the default policy, or settings for `Policy.load`, as a dict or
            the path of a file that is read now (docs/tools.md).
        root_dir: The directory for packages. Only sessions with it in their workspace, or in `tools`, may name the server.
        connect_timeout: Limit in seconds for the start of the server, and again for its answer.
        registry: The registry; this user's by default.
        on_progress: Called in this event loop with the number of finished tools and the number of all tools.
        on_left_out: Called with each tool that gets no module, and the reason: its description is invalid, or it can only
            be called as a task. A log line names these, too.

    Returns:
        The names of the modules, one for each tool.

    Raises:
        InvalidInputError: The name or the parameters are invalid, or a directory that was not generated is in the way.
        McpServerError: The server could not be started or reached, or its answer was invalid. If it needs a login, it is
            registered without tools, and the message names the command that logs in and writes the package.
        StoreError: The registry cannot be used.
        OSError: `root_dir` cannot be written.
    """
    params = made_absolute(parse_params(server_name, server_params), os.getcwd())
    async with Servers(lambda _: params, connect_timeout=connect_timeout) as servers:
        generated = await generate(server_name, params, root_dir, servers, registry, on_progress, on_left_out, last=True)
    return generated.names


@dataclass(frozen=True, slots=True)
class Generated:
    """A generated API.

    Attributes:
        names: The names of the modules, one for each tool.
        instructions: What the server says about its use.
    """

    names: list[str]
    instructions: str


async def generate(
    server_name: str,
    params: ServerParams,
    root_dir: str | os.PathLike[str],
    servers: Servers,
    registry: ServerRegistry | None = None,
    on_progress: Callable[[int, int], object] | None = None,
    on_left_out: Callable[[str, str], object] | None = None,
    *,
    last: bool = False,
) -> Generated:
    """Generate the API as `generate_mcp_sources`, from a server of `servers`, which may run already.

    Args:
        server_name: The server's name.
        params: The server's parameters, with absolute paths.
        root_dir: The directory for packages.
        servers: The servers.
        registry: The registry; this user's by default.
        on_progress: As for `generate_mcp_sources`.
        on_left_out: As for `generate_mcp_sources`.
        last: Whether to stop the servers, which takes longer than writing the package.
    """
    check_server_name(server_name)
    root = await asyncio.to_thread(os.path.realpath, root_dir)
    _warn(server_name, params, root)
    loop = asyncio.get_running_loop()

    def report(done: int, total: int) -> None:
        if on_progress:
            loop.call_soon_threadsafe(on_progress, done, total)

    def write(tools: list[ToolSpec]) -> list[str]:
        names = write_package(root_dir, server_name, tools, report, instructions)
        # Last: a package without a server reports that it is not registered; a server without a package would stay
        # unnoticed.
        facts = {tool.name: facts_of(tool) for tool in tools}
        _register(registry, server_name, params, tools_hash(tools), root, facts)
        return names

    try:
        listed = await servers.list_tools(server_name)
    except McpServerError:
        if isinstance(params, RemoteServer) and servers.needs_login(server_name):
            # The command that the error names finds the server by its name, and writes the package.
            with_login = replace(params, auth=params.auth or OAuth())
            await asyncio.to_thread(_register, registry, server_name, with_login, "", root)
        raise
    instructions = await servers.instructions(server_name)
    for tool in listed:
        if tool.why_not:
            _LOG.warning("MCP server %r: tool %r is left out: %s", server_name, tool.name, tool.why_not)
            if on_left_out is not None:
                on_left_out(tool.name, tool.why_not)
    tools = [tool for tool in listed if not tool.why_not]
    names = asyncio.create_task(asyncio.to_thread(write, tools))
    if last:
        await asyncio.gather(names, servers.close())
    return Generated(await names, instructions)


def _register(
    registry: ServerRegistry | None,
    server_name: str,
    params: ServerParams,
    digest: str,
    root: str,
    facts: Mapping[str, ToolFacts] | None = None,
) -> None:
    """Register a server in a registry, or in this user's."""
    if registry is not None:
        registry.register(server_name, params, digest, root, facts)
        return
    with closing(ServerRegistry()) as own:
        own.register(server_name, params, digest, root, facts)


async def add_announced(root_dir: str, server_name: str, tools: list[ToolSpec], instructions: str) -> None:
    """Write the API of a server that has announced other tools.

    The registered facts stay: a call of a new or changed tool is decided about with that in mind (`changes`).
    """
    if root_dir:
        known = [tool for tool in tools if not tool.why_not]
        await asyncio.to_thread(write_package, root_dir, server_name, known, None, instructions)


def _warn(server_name: str, params: ServerParams, root: str) -> None:
    directory = os.getcwd()
    workspace = directory if os.path.commonpath((root, directory)) == directory else os.path.dirname(root)
    for path in files_within(params, workspace):
        _LOG.warning(
            "MCP server %r runs or reads %s on the host, and sessions in %s may write to that: keep it elsewhere",
            server_name,
            path,
            workspace,
        )
