"""The modules of the package, each parsed once for all tests that read them."""

from __future__ import annotations

import ast
import functools
import gc
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "cellblock"


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of a file."""
    source = path.read_text(encoding="utf-8")
    gc.disable()  # it would visit the nodes of all files again and again, which takes four times as long as parsing
    try:
        found: list[ast.AST] = [ast.parse(source)]
        for node in found:  # like `ast.walk`, in half the time
            for value in vars(node).values():
                if isinstance(value, ast.AST):
                    found.append(value)
                elif isinstance(value, list):
                    found += [one for one in value if isinstance(one, ast.AST)]
        return found
    finally:
        gc.enable()
        gc.freeze()  # nor later: the nodes stay until the process ends
