"""Copies of the package in which a defence is switched off: what a function does, or the value of a constant, is replaced."""

from __future__ import annotations

import ast
import compileall
import functools
import os
import shutil
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import cellblock

SOURCE = Path(cellblock.__file__).parent


class Edit(NamedTuple):
    """A function or method that gets another body, or a constant that gets another value.

    Attributes:
        file: The module's path in the package.
        name: What is replaced, such as ``Kernel.kill``.
        new: The statements of the new body, or the expression that is the new value.
    """

    file: str
    name: str
    new: str


def copied(place: Path, *edits: Edit) -> Path:
    """Copy the package into a new directory, with edits; return the directory."""
    # Compiled once, and copied with their times: in each copy, only what is edited is compiled again.
    compileall.compile_dir(SOURCE, quiet=1)
    shutil.copytree(SOURCE, place / "cellblock")
    for edit in edits:
        path = place / "cellblock" / edit.file
        path.write_text(edited(path.read_text(), edit))
    return place


@functools.cache
def parsed(text: str) -> ast.Module:
    """Parse a module's text; several edits have the same."""
    return ast.parse(text)


def edited(text: str, edit: Edit) -> str:
    """Return a module's text with another body or value in it.

    Raises:
        LookupError: The module has no definition of that name, or more than one.
    """
    found = [*_definitions(parsed(text), edit.name.split("."))]
    if len(found) != 1:
        raise LookupError(f"{edit.file} defines {edit.name} {len(found)} times")
    node = found[0]
    if isinstance(node, ast.expr):
        return _replaced(text, [node], f"({edit.new})")
    indent = " " * node.body[0].col_offset
    return _replaced(text, node.body, textwrap.indent(textwrap.dedent(edit.new).strip(), indent).lstrip())


def _definitions(
    tree: ast.Module | ast.ClassDef, parts: list[str]
) -> Iterable[ast.FunctionDef | ast.AsyncFunctionDef | ast.expr]:
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) if name == parts[0] and len(parts) > 1:
                yield from _definitions(node, parts[1:])
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if [name] == parts:
                yield node
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if [name] == parts:
                yield value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if [name] == parts:
                yield value


def _replaced(text: str, nodes: list[ast.stmt] | list[ast.expr], new: str) -> str:
    """Put text in the place of nodes that follow each other."""
    lines = text.encode().splitlines(keepends=True)  # the offsets of nodes count bytes
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    first, last = nodes[0], nodes[-1]
    assert last.end_lineno is not None
    assert last.end_col_offset is not None
    begin, end = starts[first.lineno - 1] + first.col_offset, starts[last.end_lineno - 1] + last.end_col_offset
    return (text.encode()[:begin] + new.encode() + text.encode()[end:]).decode()


def environment(package: Path) -> dict[str, str]:
    """Return the environment in which a program imports a copy."""
    return {**os.environ, "PYTHONPATH": str(package), "TMPDIR": str(package)}
