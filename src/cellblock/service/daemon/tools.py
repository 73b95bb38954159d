"""Answers what clients ask about the tools of a session."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from cellblock.errors import UnsupportedError
from cellblock.operations.tools import RegisterServer, SearchTools
from cellblock.service.daemon.handlers import answers
from cellblock.service.daemon.server import Server

_MOST = 1_000_000
"""Characters of an answer, whatever a client wants: code in the session may have written anything into what is searched."""


@answers(RegisterServer)
async def register(server: Server, request: RegisterServer) -> dict[str, Any]:
    """See `RegisterServer`."""
    # Imported here: few sessions need it, and it takes longer than a session.
    from cellblock.tools.apigen.generate import generate_mcp_sources
    from cellblock.tools.calling import search
    from cellblock.tools.mcp.params import parse_params
    from cellblock.tools.mcp.place import made_absolute

    workspace = _workspace(server, request.session)
    root = workspace / "mcptools"
    params = made_absolute(parse_params(request.name, request.params), str(workspace))
    names = await generate_mcp_sources(request.name, params.to_dict(), root)
    signatures = await asyncio.to_thread(search.signatures, request.name, root_dir=root) if names else []
    return {"tools": names, "signatures": signatures}


@answers(SearchTools)
async def search_tools(server: Server, request: SearchTools) -> str:
    """See `SearchTools`."""
    workspace = _workspace(server, request.session)
    given = server.sessions.find(request.session).options.get("tools", ())
    others = [given] if isinstance(given, str) else given
    roots = [workspace / "mcptools", workspace / "gentools", *map(Path, others)]
    shown = await asyncio.to_thread(_search, roots, request)
    most = max(min(request.most, _MOST), 0)
    return shown if len(shown) <= most else f"{shown[:most]}\n… there is more: give more words"


def _workspace(server: Server, session: str) -> Path:
    workspace = server.sessions.find(session).record.workspace
    if not workspace:
        raise UnsupportedError("the session has no workspace, which tools would be in: make one with working_dir")
    return Path(workspace)


def _search(roots: list[Path], request: SearchTools) -> str:
    from cellblock.tools.calling import search

    if request.module:
        root, path = _place(request.module, roots)
        return search.interface(path, root_dir=root)
    if request.tools:
        places = (_place(tool, roots) for tool in request.tools)
        found = [line for root, path in places for line in search.signatures(path, root_dir=root)]
        return "\n".join(found) or "There are no such tools."
    found = [f"{root.name}.{name}" for root in roots for name in search.names(request.words, root_dir=root)]
    return "\n".join(dict.fromkeys(found)) or "No tool was found. Is its server registered?"


def _place(module: str, roots: list[Path]) -> tuple[Path, str]:
    """Return the directory of a module, and its name there: ``gentools.github.top`` is ``github.top`` in ``gentools``."""
    from cellblock.tools.calling import search

    package, _, rest = module.partition(".")
    known = [root for root in roots if root.name == package]
    places = [(root, rest) for root in known] or [(root, module) for root in roots]
    return next((place for place in places if search.signatures(place[1], root_dir=place[0])), places[0])
