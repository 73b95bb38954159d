"""Handlers of operations on the tools of a session."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from cellblock.common import limited_process
from cellblock.errors import InvalidInputError, UnsupportedError
from cellblock.operations.tools import RegisterServer, SearchTools
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.handlers import answers
from cellblock.tools.calling import finder
from cellblock.tools.calling.text import plain

_MOST = 1_000_000
"""Maximum characters of an answer, even if a client wants more: code in the session may have written the searched files."""

_SECONDS = 15.0
"""Seconds that a search may take. It may use 5 of processor time, and takes a few hundredths."""


@answers(RegisterServer)
async def register(server: Server, request: RegisterServer) -> dict[str, Any]:
    # Imported here: few sessions need it, and it takes longer than a session.
    from cellblock.tools.apigen.generate import generate
    from cellblock.tools.mcp.params import parse_params
    from cellblock.tools.mcp.place import made_absolute
    from cellblock.tools.mcp.servers import Servers

    workspace = _workspace(server, request.session)
    root = workspace / "mcptools"
    params = made_absolute(parse_params(request.name, request.params), str(workspace))
    left_out: dict[str, str] = {}

    session = server.sessions.find(request.session).running
    services = None if session is None else session.services
    running = None if services is None else services.running(request.name, params)
    # A running server may have announced tools that a new process would not have.
    async with nullcontext(running) if running is not None else Servers(lambda _: params) as servers:
        generated = await generate(request.name, params, root, servers, on_left_out=left_out.__setitem__, last=running is None)
    names = generated.names
    signatures = (await _found([root], tools=[request.name])).partition("\n\n")[0].splitlines() if names else []
    return {
        "tools": names,
        "signatures": signatures,
        "instructions": plain(generated.instructions),
        "left_out": left_out,
    }


@answers(SearchTools)
async def search_tools(server: Server, request: SearchTools) -> str:
    workspace = _workspace(server, request.session)
    given = server.sessions.find(request.session).options.get("tools", ())
    others = [given] if isinstance(given, str) else given
    roots = [workspace / "mcptools", workspace / "gentools", *map(Path, others)]
    most = max(min(request.most, _MOST), 0)
    shown = await _found(roots, request.words, request.tools, request.module, most)
    return shown if len(shown) <= most else f"{shown[:most]}\n… more tools match: search with more words"


def _workspace(server: Server, session: str) -> Path:
    workspace = server.sessions.find(session).record.workspace
    if not workspace:
        raise UnsupportedError("the session has no workspace for tools: create a session with working_dir")
    return Path(workspace)


async def _found(
    roots: Sequence[Path], words: str = "", tools: Sequence[str] = (), module: str = "", most: int = _MOST
) -> str:
    """Search in another process (`finder`), and return at most one character more than `most`.

    Raises:
        InvalidInputError: The request is invalid.
        UnsupportedError: The search takes too long, or too much memory.
    """
    asked = {"roots": [*map(str, roots)], "words": words, "tools": [*tools], "module": module, "most": most + 1}
    said = await limited_process.run(finder.__file__, json.dumps(asked).encode(), _SECONDS) or b""
    kind, text = said[:1], said[1:].decode("utf-8", "replace")
    if kind == b"-":
        raise InvalidInputError(text)
    if kind != b"+":
        raise UnsupportedError(
            "the tools of the session could not be searched within 5 seconds of processor time and 1 GiB: remove large files "
            "from the directories of its tools"
        )
    return text
