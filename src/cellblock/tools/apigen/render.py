"""The modules of a generated package, as source: one for each tool, and the package itself.

A module holds the names of the server and the tool and nothing else about either: not how the server is reached.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellblock.tools.apigen.check import check_source
from cellblock.tools.apigen.names import field_names, module_names
from cellblock.tools.apigen.shapes import Property, Shape, Shapes, read_params, read_result
from cellblock.tools.calling.text import docstring, plain, wrapped

if TYPE_CHECKING:
    from cellblock.tools.calling.content import ToolSpec

_LONGEST_ANNOTATION = 60
_LONGEST_SIGNATURE = 400
_LONGEST_DESCRIPTION = 1000

# With an interpreter that has no pydantic the import fails here, once, with words that help.
_PACKAGE = """
try:
    from pydantic import VERSION as _version
except ImportError:
    _version = "none"
if _version.partition(".")[0] != "2":
    raise ImportError(
        "the tools of {server} need pydantic 2, and this interpreter has " + _version + ": %pip install 'pydantic>=2'"
    )

from cellblock.tools.calling.runner import ToolRunner

_runner = ToolRunner("{server}")
"""

_CALL = "_runner.{method}({tool!r}, params.model_dump(mode='json', by_alias=True, exclude_unset=True))"

_FUNCTIONS = '''

def run(params: Params) -> {returns}:
    {docstring}
    result = {call}
    return {returned}


async def run_async(params: Params) -> {returns}:
    """Do what `run` does, for code that awaits calls, or gathers several."""
    result = {call_async}
    return {returned}
'''


@dataclass(frozen=True, slots=True)
class Module:
    """A tool's module.

    Attributes:
        name: The module's name.
        tool: The tool's name.
        signature: How it is called, on one line.
        description: What it does, in the server's words.
        source: Its source.
    """

    name: str
    tool: str
    signature: str
    description: str
    source: str


def render(tools: Sequence[ToolSpec]) -> Iterator[Module]:
    """Write the modules of a server's tools, one by one.

    Args:
        tools: The tools; of those that are listed twice, the first is taken.

    Yields:
        Their modules, in the same order.
    """
    first = {tool.name: tool for tool in reversed(tools)}
    for tool, name in module_names(tool.name for tool in tools).items():
        yield render_module(name, first[tool])


def render_module(name: str, tool: ToolSpec) -> Module:
    """Write the module of a tool.

    Args:
        name: The module's name.
        tool: The tool.

    Returns:
        The module: whatever the tool's schemas are, it parses, imports and can be called.
    """
    params = read_params(tool.input_schema)
    result = (
        read_result(tool.output_schema, {shape.name for shape in params.classes}) if tool.output_schema is not None else None
    )
    try:
        source = _source(tool, params, result)
        check_source(source, tool.name)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        # None is known. If the check ever finds something, what is left has nothing of the schema in it.
        reason = ("it could not be read safely",)
        params = Shapes((Shape("Params"),), reason)
        result = Shapes((Shape("Result"),), reason) if result else None
        source = _source(tool, params, result)
        check_source(source, tool.name)
    signature = _signature(name, params.classes[0], "Result" if result else "str")
    return Module(name, tool.name, signature, plain(tool.description, _LONGEST_DESCRIPTION), source)


def render_package(server_name: str, modules: Sequence[Module]) -> str:
    """Write ``__init__.py``: what tools there are, and the one thing that the modules share.

    Args:
        server_name: The server's name.
        modules: The package's modules.

    Returns:
        Its source.
    """
    lines = [f"Tools of the MCP server `{server_name}`, one module each: Params, run(params), run_async(params)."]
    if modules:
        lines += ["", f"    from .{modules[0].name} import Params, run", "", *(module.signature for module in modules)]
    source = docstring("\n".join(lines)) + "\n" + _PACKAGE.format(server=server_name)
    ast.parse(source)
    return source


def _source(tool: ToolSpec, params: Shapes, result: Shapes | None) -> str:
    shapes = [*params.classes, *(result.classes if result else ())]
    names = {shape.name for shape in shapes}
    # A class that is made of others (`Shape.root`) comes after them: bases are evaluated at once, annotations are not.
    shapes = sorted(shapes, key=lambda shape: shape.root is not None)
    body = "\n\n\n".join(_class(shape, names) for shape in shapes)
    text = plain(tool.description)
    notes = [
        f"{name} allows more than the tool's schema, as {note}."
        for name, known in (("Params", params), ("Result", result))
        for note in (known.notes if known else ())
    ]
    full = "\n\n".join([text or f"Call the tool `{plain(tool.name, 100)}`.", *notes])
    return "\n\n".join(
        (
            docstring(f"The tool `{plain(tool.name, 100)}`."),
            "from __future__ import annotations",
            _imports(body, typed=result is not None),
            f"\n{body}\n{_functions(tool.name, full, typed=result is not None)}",
        )
    )


def _imports(body: str, *, typed: bool) -> str:
    # Words in descriptions bring an import too many now and then, which does no harm.
    typing = [name for name in ("Annotated", "Any", "Literal") if name in body]
    typing += [] if typed else ["cast"]
    models = [name for name in ("BaseModel", "ConfigDict", "Field", "RootModel") if name in body]
    lines = [f"from typing import {', '.join(typing)}\n"] if typing else []
    return "\n".join([*lines, f"from pydantic import {', '.join(models)}", "", "from . import _runner"])


def _functions(tool: str, text: str, *, typed: bool) -> str:
    return _FUNCTIONS.format(
        returns="Result" if typed else "str",
        docstring=docstring(wrapped(text, ""), "    "),
        call=_CALL.format(method="run_sync", tool=tool),
        call_async="await " + _CALL.format(method="run", tool=tool),
        # What a runner returns for text may be more than a string, and may be empty but for its images.
        returned="Result.model_validate(result)" if typed else "'' if result is None else cast('str', result)",
    )


def _class(shape: Shape, classes: set[str]) -> str:
    if shape.root is not None:
        text = plain(shape.description, _LONGEST_DESCRIPTION) or "What the tool returns, in `root`."
        return f"class {shape.name}(RootModel[{shape.root}]):\n    {docstring(wrapped(text, ''), '    ')}"
    names = field_names((one.name for one in shape.properties), classes)
    about = {"Params": "The tool's arguments.", "Result": "What the tool returns."}.get(shape.name, f"A {shape.name}.")
    text = wrapped(plain(shape.description, _LONGEST_DESCRIPTION) or about, "")
    described = [one for one in shape.properties if one.description]
    if described:
        entries = (f"{names[one.name]}: {plain(one.description, _LONGEST_DESCRIPTION)}" for one in described)
        text += "\n\nAttributes:\n" + "\n".join(f"    {wrapped(entry, ' ' * 8, 112)}" for entry in entries)
    config = ["extra='allow'" if shape.extra else "extra='forbid'"]
    if any(names[one.name] != one.name for one in shape.properties):
        config.append("populate_by_name=True")
    if any(name.startswith("model_") for name in names.values()):
        config.append("protected_namespaces=()")  # pydantic warns of them before 2.10
    lines = [
        f"class {shape.name}(BaseModel):",
        f"    {docstring(text, '    ')}",
        "",
        f"    model_config = ConfigDict({', '.join(config)})",
    ]
    # Those with defaults may stand before those without: pydantic takes all of them by keyword.
    lines += ["", *(f"    {_field(names[one.name], one)}" for one in shape.properties)] if shape.properties else []
    return "\n".join(lines)


def _field(name: str, one: Property) -> str:
    if name == one.name:
        return f"{name}: {one.annotation}" + ("" if one.default is None else f" = {one.default}")
    default = "" if one.default is None else f"default={one.default}, "
    return f"{name}: {one.annotation} = Field({default}validation_alias={one.name!r}, serialization_alias={one.name!r})"


def _signature(name: str, shape: Shape, returns: str) -> str:
    names = field_names((one.name for one in shape.properties), ())
    ordered = sorted(shape.properties, key=lambda one: one.default is not None)
    arguments = [f"{names[one.name]}: {_short(one)}" for one in ordered]
    while len(", ".join(arguments)) > _LONGEST_SIGNATURE:
        arguments = [*arguments[: len(arguments) * 2 // 3], "…"]
    return f"{name}({', '.join(arguments)}) -> {returns}"


def _short(one: Property) -> str:
    """Return an annotation without constraints, and its default."""
    tree = _Unannotated().visit(ast.parse(one.annotation, mode="eval"))
    annotation = ast.unparse(tree)
    if one.default == "None":
        annotation = annotation.removesuffix(" | None")
    if len(annotation) > _LONGEST_ANNOTATION:
        annotation = f"{annotation[:_LONGEST_ANNOTATION]}…"
    return annotation if one.default is None else f"{annotation} = {one.default}"


class _Unannotated(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == "Annotated" and isinstance(node.slice, ast.Tuple):
            node = node.slice.elts[0]  # type: ignore[assignment]  # an expression like any other
        return self.generic_visit(node)
