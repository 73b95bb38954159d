"""Searches tools for clients outside the session, in a limited process started by `service.daemon.tools`.

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

    if module:
        root, path = _place(module, roots)
        return search.interface(path, root_dir=root)
    if tools:
        places = (_place(tool, roots) for tool in tools)
        found = [line for root, path in places for line in search.signatures(path, root_dir=root)]
        return "\n".join(found) or "No tool has this name."
    found = [f"{root.name}.{name}" for root in roots for name in search.names(words, root_dir=root)]
    return "\n".join(dict.fromkeys(found)) or "No tool was found. Check that its server is registered."


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
