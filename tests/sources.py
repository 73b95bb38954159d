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
        return [*ast.walk(ast.parse(source))]
    finally:
        gc.enable()
