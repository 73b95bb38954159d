"""Extracts code that a language model sent with surrounding prose, in one Markdown fence."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

_FENCED = re.compile(
    r"^ {0,3}```[ \t]*(?:python3?|py|ipython)?[ \t]*\n(?P<code>.*?)^ {0,3}```[ \t]*$", re.MULTILINE | re.DOTALL | re.IGNORECASE
)
_FENCES = re.compile(r"^ {0,3}```", re.MULTILINE)


def code_of(cell: str, transform: Callable[[str], str]) -> str:
    """Return the code in the only fence of a cell that is not valid Python; any other cell unchanged.

    Args:
        cell: The cell.
        transform: Converts IPython's own syntax to Python.
    """
    if "```" not in cell or len(_FENCES.findall(cell)) != 2:
        return cell
    found = _FENCED.search(cell)
    if found is None or _is_python(cell, transform):
        return cell
    return found["code"]


def _is_python(cell: str, transform: Callable[[str], str]) -> bool:
    try:
        compile(transform(cell), "<cell>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
