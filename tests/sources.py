"""The modules of the package, each parsed once for all tests that read them."""

from __future__ import annotations

import ast
import functools
import gc
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1] / "src" / "cellblock"


def nodes(path: Path, *kinds: type[ast.AST]) -> list[Any]:
    """Return the nodes of a file that are of some kinds, in no order."""
    found = _by_kind(path)
    return [node for kind in kinds for node in found.get(kind, ())]


@functools.cache
def _by_kind(path: Path) -> dict[type[ast.AST], list[ast.AST]]:
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
        by_kind: dict[type[ast.AST], list[ast.AST]] = {}
        for node in found:
            by_kind.setdefault(type(node), []).append(node)
        return by_kind
    finally:
        gc.enable()
        gc.freeze()  # nor later: the nodes stay until the process ends
