"""Rendering of a generated package as source: one module for each tool, and the package itself.

A module contains the names of the server and the tool, but not how to reach the server.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellblock.tools.apigen.check import check_source
from cellblock.tools.apigen.names import ambiguous_modules, field_names, member_names, module_names, with_digest
from cellblock.tools.apigen.shapes import Property, Shape, Shapes, read_params, read_result
from cellblock.tools.calling.interface import Unannotated
from cellblock.tools.calling.text import docstring, plain

if TYPE_CHECKING:
    from cellblock.tools.calling.content import ToolSpec

_LONGEST_ANNOTATION = 60
_LONGEST_SIGNATURE = 400
_LONGEST_DESCRIPTION = 1000
_MOST_NAMED = 10

# With an interpreter without pydantic, the import fails here, once, with a helpful message.
_PACKAGE = """
try:
    from pydantic import VERSION as _version
except ImportError:
    _version = "none"
if _version.partition(".")[0] != "2":
    raise ImportError(
        "the tools of {server} need pydantic 2, and this interpreter has " + _version + ": %pip install 'pydantic>=2'"
    )

from cellblock.tools.calling.typed import ParamsModel, ResultModel, caller, twin

call = caller("{server}")

__all__ = ["ParamsModel", "ResultModel", "call", "twin"]
"""

_FUNCTIONS = """

def run(params: Params) -> {returns}:
    {docstring}return call({tool!r}, params, {returns}, Params)


run_async = twin(run)
"""


@dataclass(frozen=True, slots=True)
class Module:
    """A tool's module.

    Attributes:
        name: The module's name.
        tool: The tool's name.
        signature: The tool's signature, on one line.
        description: The server's description.
        arguments: The names and descriptions of its arguments, for the search.
        source: The source.
    """

    name: str
    tool: str
    signature: str
    description: str
    arguments: str
    source: str


def render(tools: Sequence[ToolSpec]) -> Iterator[Module]:
    """Render the modules of a server's tools, one by one.

    Args:
        tools: The tools; of duplicates, the first one is used.

    Yields:
        The modules, in the same order.
    """
    first = {tool.name: tool for tool in reversed(tools)}
    for tool, name in module_names(tool.name for tool in tools).items():
        yield render_module(name, first[tool])


def render_module(name: str, tool: ToolSpec) -> Module:
    """Render the module of a tool.

    Args:
        name: The module's name.
        tool: The tool.

    Returns:
        The module. For every schema, it parses, can be imported and can be called.
    """
    params = read_params(tool.input_schema)
    result = (
        read_result(tool.output_schema, {shape.name for shape in params.classes}) if tool.output_schema is not None else None
    )
    try:
        source = _source(tool, params, result)
        check_source(source, tool.name)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        # No such case is known. If the check ever fails, the fallback contains nothing of the schema.
        reason = ("it could not be read safely",)
        params = Shapes((Shape("Params"),), reason)
        result = Shapes((Shape("Result", strict=False),), reason) if result else None
        source = _source(tool, params, result)
        check_source(source, tool.name)
    signature = _signature(name, params, "Result" if result else "str")
    known = " ".join(f"{one.name} {one.description}".strip() for one in params.classes[0].properties)
    description = plain(tool.description, _LONGEST_DESCRIPTION)
    return Module(name, tool.name, signature, description, plain(known, _LONGEST_DESCRIPTION), source)


def render_ambiguous(tools: Sequence[ToolSpec]) -> dict[str, str]:
    """Render modules whose names several tools would share. Importing one fails, with the right names in the message.

    Args:
        tools: The tools of a server.

    Returns:
        Module → its source.
    """
    names = module_names(tool.name for tool in tools)
    sources = {}
    for module, several in ambiguous_modules(tool.name for tool in tools).items():
        meant = ", ".join(f"{names[tool]} ({plain(tool, 100)})" for tool in several[:_MOST_NAMED])
        text = f"several tools of this server would be named {module}: import one of {meant}"
        sources[module] = f"raise ImportError({text!r})\n"
    return sources


def render_package(server_name: str, modules: Sequence[Module], instructions: str = "") -> str:
    """Render ``__init__.py``: the list of tools, and the part that the modules share.

    Args:
        server_name: The server's name.
        modules: The package's modules.
        instructions: What the server says about its use.

    Returns:
        The source.
    """
    lines = [f"Tools of the MCP server `{server_name}`, one module each: Params, run(params), run_async(params)."]
    if modules:
        lines += ["", f"    from .{modules[0].name} import Params, run", "", *(module.signature for module in modules)]
    if instructions:
        lines += ["", "The server says:", "", plain(instructions)]
    source = docstring("\n".join(lines)) + "\n" + _PACKAGE.format(server=server_name)
    ast.parse(source)
    return source


def _source(tool: ToolSpec, params: Shapes, result: Shapes | None) -> str:
    shapes = [*params.classes, *(result.classes if result else ())]
    names = {shape.name for shape in shapes}
    # A class derived from others (`Shape.root`) follows them, because bases are evaluated at once and annotations are not.
    # Defaults are evaluated at once, too, so enumerations come first.
    shapes = sorted(shapes, key=lambda shape: (not shape.values, shape.root is not None))
    body = "\n\n\n".join(_class(shape, names) for shape in shapes)
    text = plain(tool.description)
    notes = [
        f"{name} allows more than the tool's schema, as {note}."
        for name, known in (("Params", params), ("Result", result))
        for note in (known.notes if known else ())
    ]
    parts = [text, *notes]
    return "\n\n".join(
        (
            "from __future__ import annotations",
            _imports(body, sorted([*names, "run", "run_async"])),
            f"\n{body}\n{_functions(tool.name, chr(10).join(part for part in parts if part), typed=result is not None)}",
        )
    )


def _imports(body: str, exported: list[str]) -> str:
    # Words in descriptions sometimes cause an unneeded import, which is harmless.
    standard = ["from enum import Enum"] if "(Enum)" in body else []
    typing = [name for name in ("Annotated", "Any", "Literal") if name in body]
    standard += [f"from typing import {', '.join(typing)}"] if typing else []
    models = [name for name in ("Field", "RootModel") if name in body]
    foreign = [f"from pydantic import {', '.join(models)}"] if models else []
    own = [name for name in ("ParamsModel", "ResultModel") if f"({name}" in body]
    groups = [standard, foreign, [f"from . import {', '.join([*own, 'call', 'twin'])}"], [f"__all__ = {exported!r}"]]
    return "\n\n".join("\n".join(group) for group in groups if group)


def _functions(tool: str, text: str, *, typed: bool) -> str:
    return _FUNCTIONS.format(
        tool=tool, returns="Result" if typed else "str", docstring=f"{docstring(text, '    ')}\n    " if text else ""
    )


def _class(shape: Shape, classes: set[str]) -> str:
    if shape.values:
        members = (f"    {name} = {value!r}" for value, name in member_names(shape.values).items())
        return "\n".join([f"class {shape.name}(Enum):", *members])
    text = plain(shape.description, _LONGEST_DESCRIPTION)
    if shape.root is not None:
        body = docstring(text, "    ") if text else "pass"
        return f"class {shape.name}(RootModel[{shape.root}]):\n    {body}"
    names = field_names((one.name for one in shape.properties), classes)
    described = [(names[one.name], plain(one.description, _LONGEST_DESCRIPTION)) for one in shape.properties]
    text = "\n".join([*([text] if text else []), *(f"{name}: {words}" for name, words in described if words)])
    lines = [f"    {docstring(text, '    ')}\n"] if text else []
    # Fields with defaults may precede those without: pydantic takes all of them by keyword.
    lines += [f"    {_field(names[one.name], one, strict=shape.strict)}" for one in shape.properties]
    return "\n".join([f"class {shape.name}({_bases(shape, names)}):", *(lines or ["    pass"])])


def _bases(shape: Shape, names: dict[str, str]) -> str:
    """Return the bases and arguments of a class definition."""
    if not shape.strict:
        return "ResultModel" if shape.extra else "ResultModel, extra='forbid'"
    nullable = tuple(names[one.name] for one in shape.properties if one.nullable)
    return ", ".join(
        [
            "ParamsModel",
            *(["extra='allow'"] if shape.extra else []),
            *([f"nullable={nullable!r}"] if nullable else []),
        ]
    )


def _field(name: str, one: Property, *, strict: bool) -> str:
    if name == one.name:
        return f"{name}: {one.annotation}" + ("" if one.default is None else f" = {one.default}")
    default = "" if one.default is None else f"{one.default}, "
    # pydantic accepts an argument by its JSON name, too, but not by this one, which another argument may have.
    ambiguous = strict and name == with_digest(one.name, one.name)
    return f"{name}: {one.annotation} = Field({default}{'serialization_alias' if ambiguous else 'alias'}={one.name!r})"


def _signature(name: str, params: Shapes, returns: str) -> str:
    shape = params.classes[0]
    enums = {one.name: one.values for one in params.classes if one.values}
    names = field_names((one.name for one in shape.properties), frozenset(one.name for one in params.classes))
    ordered = sorted(shape.properties, key=lambda one: one.default is not None)
    arguments = [f"{names[one.name]}: {_short(one, enums)}" for one in ordered]
    while len(", ".join(arguments)) > _LONGEST_SIGNATURE:
        arguments = [*arguments[: len(arguments) * 2 // 3], "…"]
    return f"{name}({', '.join(arguments)}) -> {returns}"


def _short(one: Property, enums: dict[str, tuple[str, ...]]) -> str:
    """Return an annotation without constraints, with the values of enumerations, and with its default."""
    tree = _WithValues(enums).visit(ast.parse(one.annotation, mode="eval"))
    annotation = ast.unparse(tree)
    if one.default == "None":
        annotation = annotation.removesuffix(" | None")
    if len(annotation) > _LONGEST_ANNOTATION:
        annotation = f"{annotation[:_LONGEST_ANNOTATION]}…"
    return annotation if one.default is None else f"{annotation} = {_plain_default(one.default, enums)}"


def _plain_default(default: str, enums: dict[str, tuple[str, ...]]) -> str:
    name, _, member = default.partition(".")
    values = {known: value for value, known in member_names(enums.get(name, ())).items()}
    return repr(values[member]) if member in values else default


class _WithValues(Unannotated):
    """Also replaces enumerations by their values."""

    def __init__(self, enums: dict[str, tuple[str, ...]]) -> None:
        self._enums = enums

    def visit_Name(self, node: ast.Name) -> ast.AST:  # noqa: N802  # the name is from ast
        if node.id not in self._enums:
            return node
        values = [*map(repr, self._enums[node.id])]
        if len(", ".join(values)) > _LONGEST_ANNOTATION:
            values = [*values[:2], "..."]
        return ast.parse(f"Literal[{', '.join(values)}]", mode="eval").body
