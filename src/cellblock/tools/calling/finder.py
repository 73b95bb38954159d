"""Searches tools for clients outside the session, in a limited process started by `service.daemon.tool_handlers`.

Sessions may have written the searched files, and parsing Python can take any time and memory, so only this process does it.
It starts without site packages. The daemon writes the request to standard input, as JSON. Standard output gets ``+`` and
the answer, or ``-`` and the error of the request.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

_MAX_MEMORY = 1024**3
_MAX_SECONDS = 5  # processor time
_SIGNATURES, _LISTED = 3, 20
"""Matching tools that are shown with their signatures, and in all."""
_SAID = 300
"""Characters of a server's instructions in the answer for words. `tools` with the name of the server shows all."""


def find(roots: Sequence[Path], words: str, tools: Sequence[str], module: str) -> str:
    """Return the complete answer to `SearchTools`.

    Args:
        roots: The directories to search.
        words: The words to search for, if neither tools nor a module are named.
        tools: Tools whose signatures to return.
        module: The tool whose interface to return.

    Raises:
        InvalidInputError: The module does not exist.
    """
    from cellblock.tools.calling import search
    from cellblock.tools.calling.catalog import instructions

    if module:
        root, path = _place(module, roots)
        return search.interface(path, root_dir=root)
    if tools:
        places = [_place(tool, roots) for tool in tools]
        found = [line for root, path in places for line in search.signatures(path, root_dir=root)]
        said = [f"{path} says:\n{words}" for root, path in places if (words := instructions(path, root))]
        return "\n\n".join(["\n".join(found), *said]) if found else "No tool has this name."
    return _matching(words, roots)


def _matching(words: str, roots: Sequence[Path]) -> str:
    """Return the tools of all directories for words: signatures of the best, names of others, and notes."""
    from cellblock.tools.calling import search
    from cellblock.tools.calling.catalog import instructions

    roots = [*dict.fromkeys(roots)]
    known = [(root, tool) for root in roots for tool in search.tools(root)]
    none = "No tool was found. Check that its server is registered."
    if not words.strip():
        return "\n".join(f"{root.name}.{tool.path}" for root, tool in known) or none
    root_of = {id(tool): root for root, tool in known}
    found, spelling = search.matching([tool for _, tool in known], words)
    lines = [f"{root_of[id(tool)].name}.{search.line(tool)}" for tool in found[:_SIGNATURES]]
    lines += [f"{root_of[id(tool)].name}.{tool.path}" for tool in found[_SIGNATURES:_LISTED]]
    for root, server in dict.fromkeys((root_of[id(tool)], tool.server) for tool in found[:_SIGNATURES]):
        if said := " ".join(instructions(server, root).split()):
            lines.append(f"{root.name}.{server} says: {said if len(said) <= _SAID else f'{said[:_SAID]}…'}")
    lines += [f"No tool is about {word!r}; did you mean {other!r}?" for word, other in spelling.items()]
    return "\n".join(lines) or none


def _place(module: str, roots: Sequence[Path]) -> tuple[Path, str]:
    """Return the directory of a module, and its name there: ``gentools.github.top`` is ``github.top`` in ``gentools``."""
    from cellblock.tools.calling import search

    package, _, rest = module.partition(".")
    known = [root for root in roots if root.name == package]
    places = [(root, rest) for root in known] or [(root, module) for root in roots]
    return next((place for place in places if search.signatures(place[1], root_dir=place[0])), places[0])


def main() -> None:
    """Answer one request."""
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_MAX_SECONDS, _MAX_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)
    asked = json.load(sys.stdin)
    try:
        said = "+" + find([Path(root) for root in asked["roots"]], asked["words"], asked["tools"], asked["module"])
    except ValueError as error:  # InvalidInputError is a subclass
        said = f"-{error}"
    sys.stdout.buffer.write(said[: asked["most"] + 1].encode("utf-8", "replace"))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    main()
