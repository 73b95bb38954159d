"""Renders a tool's module for a model: parameters and results, without code that only Python needs.

Sources are untrusted text: nothing is imported or run. Standard library only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress

from cellblock.tools.calling.text import first_line

_LONG = 2500
"""Characters of an interface above which it is shortened."""

_MOST = 50_000
"""Characters of a module that are read. Generated modules have fewer; this one is untrusted."""

_SENTENCE = 100
_VALUES, _FIRST = 100, 30
"""Characters of an enumeration's values that are shown; and of a longer one, how many of the first."""

_PREAMBLE = re.compile(r"^(?:from (?:__future__|enum|typing|pydantic|\.) import|__all__ =) .+\n+", re.MULTILINE)
_CALL = re.compile(r"^    return call\('.+\n", re.MULTILINE)
_ENUMERATION = re.compile(r"^class (?P<name>\w+)\(Enum\):\n(?P<members>(?:    \w++ = .++\n)+)", re.MULTILINE)
_VALUE = re.compile(r"^    \w+ = '?(.+?)'?$", re.MULTILINE)
_FIELD = re.compile(r"    (\w+: .{1,500})")
_ITEM = re.compile(r"\s*(?:[-*•]|\d+[.)])\s")


def interface_of(source: str, place: str) -> str:
    """Return the interface of a module.

    Imports and bodies of functions are left out. Enumerations are on one line; a long one shows its first values, and how
    to see all. If the interface is still long, each text is cut to its first sentence, and types have no constraints.

    Args:
        source: The module's source.
        place: The path of the whole module, for the model.
    """
    declared = _CALL.sub("    ...\n", _PREAMBLE.sub("", source[:_MOST]))
    declared = re.sub(r"\n{3,}", "\n\n", _ENUMERATION.sub(_on_one_line, declared)).strip()
    if len(declared) <= _LONG:
        return declared
    return "\n".join([*_shortened(declared.split("\n")), "", f"# Shortened. The whole module: {place}"])


def _on_one_line(enumeration: re.Match[str]) -> str:
    name, values = enumeration["name"], _VALUE.findall(enumeration["members"])
    shown = " ".join(values)
    if len(shown) > _VALUES:
        shown = f"{shown[:_FIRST].rpartition(' ')[0]} … all {len(values)}: [*{name}]"
    return f"class {name}(Enum): ...  # {shown}\n"


def _shortened(lines: list[str]) -> Iterator[str]:
    """Yield the lines of a long interface: the first sentence of each text, no lists, and no constraints."""
    inside = False
    for line in lines:
        quotes = line.count('"""')
        if inside or quotes:
            if '"""' in line or (line.strip() and not _ITEM.match(line)):
                yield _first_sentence(line)
            inside ^= quotes == 1
        elif field := _FIELD.fullmatch(line):
            yield f"    {_without_constraints(field[1])}"
        else:
            yield line


def _first_sentence(line: str) -> str:
    words = line.strip()
    opening = '"""' if words.startswith('"""') else ""
    closing = '"""' if words.endswith('"""') and words != opening else ""
    return f"    {opening}{first_line(words[len(opening) : len(words) - len(closing)], _SENTENCE)}{closing}"


def _without_constraints(field: str) -> str:
    with suppress(SyntaxError, ValueError, RecursionError):
        (statement,) = ast.parse(field).body
        if isinstance(statement, ast.AnnAssign):
            return ast.unparse(Unannotated().visit(statement))
    return field


class Unannotated(ast.NodeTransformer):
    """Replaces ``Annotated[TYPE, …]`` by its type."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == "Annotated" and isinstance(node.slice, ast.Tuple):
            return self.visit(node.slice.elts[0])  # type: ignore[no-any-return]
        return self.generic_visit(node)
