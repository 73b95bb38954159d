"""Code actions: working code that is saved as a tool for later code.

A saved action is a package, ``gentools/<category>/<name>``. Its ``api.py`` has the interface: types, and the signature and
docstring of ``run``. Its ``impl.py`` has the implementation, which users need not read. A parser of a tool's text output is
a module, ``mcpparse/<server>/<tool>.py``, with ``ParseResult`` and ``run_parsed``.

Standard library only, because it works inside a session and outside. Sources are parsed here, and never executed.
"""

from __future__ import annotations

import ast
import errno
import keyword
import os
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cellblock.errors import InvalidInputError
from cellblock.tools.calling import beneath

Function = ast.FunctionDef | ast.AsyncFunctionDef

_PARSED = '''

from mcptools.{server}.{tool} import Params, run  # noqa: E402


def run_parsed(params: Params) -> ParseResult:
    """Call the tool, and parse what it returns."""
    return parse(run(params))
'''


def save_action(
    category: str, name: str, api: str, impl: str, *, root_dir: str | os.PathLike[str] = "gentools", replace: bool = False
) -> Path:
    """Save code as a tool for later code: ``from gentools.category.name import run``.

    Args:
        category: The package, such as ``github``.
        name: The name of the tool.
        api: Source of the interface: the types of arguments and results, and a function ``run`` with annotations and a
            docstring. The body of ``run`` is generated.
        impl: Source of the implementation: a function ``run`` with the same parameters.
        root_dir: The directory of actions.
        replace: Whether to replace an existing action.

    Returns:
        The package's folder.

    Raises:
        InvalidInputError: A name is not an identifier, a source is not as described, the action already exists, or a link
            is in the way.
        OSError: The action cannot be written.
    """
    _check_name("category", category)
    _check_name("name", name)
    tree = _parse("api", api)
    declared, written = _function(tree, "api", "run"), _function(_parse("impl", impl), "impl", "run")
    _check_interface(declared)
    if _names(declared) != _names(written):
        raise InvalidInputError(f"impl must have the parameters of api: run({_names(declared)}), not run({_names(written)})")
    definitions = (node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef))
    public = [node.name for node in definitions if not node.name.startswith("_")]
    imported = f"from .api import {', '.join(public)}\n\n__all__ = {sorted(public)!r}\n"
    files = {"__init__.py": imported, "api.py": _delegating(api, declared), "impl.py": impl.strip() + "\n"}
    place = Path(root_dir) / category / name
    with _package(root_dir, category) as folder:
        if beneath.exists(folder, name) and not replace:
            raise InvalidInputError(f"there is an action {place} already: replace=True, or --replace, replaces it")
        beneath.write_folder(folder, name, files)
    return place


def save_parser(
    server: str, tool: str, source: str, *, root_dir: str | os.PathLike[str] = "mcpparse", replace: bool = False
) -> Path:
    """Save a parser for a tool that returns text: ``from mcpparse.server.tool import Params, run_parsed``.

    Args:
        server: The server's name.
        tool: The module of the tool.
        source: A class ``ParseResult``, and a function ``parse`` that creates one from the tool's text.
        root_dir: The directory of parsers.
        replace: Whether to replace an existing parser.

    Returns:
        The module's path.

    Raises:
        InvalidInputError, OSError: As for `save_action`.
    """
    _check_name("server", server)
    _check_name("tool", tool)
    tree = _parse("source", source)
    if len(_function(tree, "source", "parse").args.args) != 1:
        raise InvalidInputError("parse must have one parameter: the text that the tool returns")
    if not any(isinstance(node, ast.ClassDef) and node.name == "ParseResult" for node in tree.body):
        raise InvalidInputError("source must define a class ParseResult")
    path = Path(root_dir) / server / f"{tool}.py"
    with _package(root_dir, server) as folder:
        if beneath.exists(folder, path.name) and not replace:
            raise InvalidInputError(f"there is a parser {path} already: replace=True replaces it")
        beneath.write(folder, path.name, source.strip() + "\n" + _PARSED.format(server=server, tool=tool))
    return path


def signature_of(api: str) -> tuple[str, str] | None:
    """Return the signature and the description of an action; None if the source is not an action.

    Args:
        api: The source of the interface.
    """
    try:
        found = _function(ast.parse(api), "api", "run")
    except (InvalidInputError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    returns = f" -> {ast.unparse(found.returns)}" if found.returns is not None else ""
    return f"({ast.unparse(found.args)}){returns}", ast.get_docstring(found) or ""


def _check_name(what: str, name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_") or len(name) > 100:
        raise InvalidInputError(f"{what} must be a Python identifier that does not begin with _, not {name[:200]!r}")


def _parse(what: str, source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidInputError(f"{what} is not valid Python: {error}") from None


def _function(tree: ast.Module, what: str, name: str) -> Function:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
    raise InvalidInputError(f"{what} must define a function {name}")


def _check_interface(declared: Function) -> None:
    arguments = declared.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    missing = [argument.arg for argument in every if argument.annotation is None]
    if missing or declared.returns is None:
        raise InvalidInputError(f"in api, annotate what run {'takes: ' + ', '.join(missing) if missing else 'returns'}")
    if not ast.get_docstring(declared):
        raise InvalidInputError("in api, give run a docstring that says what it does: other code finds the action by it")
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        raise InvalidInputError("run must have plain parameters, without *args, **kwargs and /")


def _names(function: Function) -> str:
    return ", ".join(argument.arg for argument in [*function.args.args, *function.args.kwonlyargs])


def _delegating(api: str, declared: Function) -> str:
    """Return the interface with a body for ``run`` that calls the implementation."""
    lines = api.splitlines()
    docstring = declared.body[0]
    assert docstring.end_lineno is not None
    assert declared.end_lineno is not None
    passed = ", ".join(f"{argument.arg}={argument.arg}" for argument in [*declared.args.args, *declared.args.kwonlyargs])
    call = f"{'await ' if isinstance(declared, ast.AsyncFunctionDef) else ''}_run({passed})"
    body = textwrap.indent(f"from .impl import run as _run\n\nreturn {call}\n", " " * docstring.col_offset)
    kept = [*lines[: docstring.end_lineno], "", *body.splitlines(), *lines[declared.end_lineno :]]
    return "\n".join(kept).strip() + "\n"


@contextmanager
def _package(root_dir: str | os.PathLike[str], name: str) -> Iterator[int]:
    """Open the folder of a package and its parent; create missing ones. No link is followed.

    Raises:
        InvalidInputError: Something is in the way.
    """
    try:
        with beneath.folder(root_dir, make=True) as root:
            beneath.make_package(root)
        with beneath.folder(root_dir, name, make=True) as folder:
            beneath.make_package(folder)
            yield folder
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise InvalidInputError(f"{Path(root_dir) / name} must be a folder, and not a link or in one: move it away") from error
