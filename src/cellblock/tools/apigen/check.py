"""Checks generated source before it is written: it may contain only the parts of a tool's module.

The generator puts a server's text into code only as literals, or as names made by `names`. This check guards against bugs
of the generator. The trusted side never executes generated code.
"""

from __future__ import annotations

import ast

_IMPORTS = {
    "__future__": {"annotations"},
    "enum": {"Enum"},
    "typing": {"Annotated", "Any", "Literal"},
    "pydantic": {"Field", "RootModel"},
}
_OWN = {"ParamsModel", "ResultModel", "call", "twin"}
_NODES = (
    ast.Module,
    ast.Expr,
    ast.Constant,
    ast.ImportFrom,
    ast.alias,
    ast.ClassDef,
    ast.AnnAssign,
    ast.Assign,
    ast.FunctionDef,
    ast.arguments,
    ast.arg,
    ast.Return,
    ast.Pass,
    ast.Call,
    ast.keyword,
    ast.Name,
    ast.Load,
    ast.Store,
    ast.Attribute,
    ast.Subscript,
    ast.List,
    ast.Tuple,
    ast.BinOp,
    ast.BitOr,
    ast.UnaryOp,
    ast.USub,
)
_WORDS = frozenset(("bool", "dict", "float", "int", "list", "params", "run", "str", "tuple"))
_CALLS = frozenset(("Field", "call", "twin"))


def check_source(source: str, tool: str) -> None:
    """Check the source of a tool's module.

    Args:
        source: The source.
        tool: The tool that its functions may call.

    Raises:
        ValueError: The source contains an unexpected part; the message names it.
        SyntaxError: The source is not Python.
    """
    tree = ast.parse(source)
    for statement in tree.body:
        _check_statement(statement)
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    enums = {node.name for node in tree.body if isinstance(node, ast.ClassDef) and ast.unparse(node.bases[0]) == "Enum"}
    for node in ast.walk(tree):
        _check_node(node, classes, enums, tool)


def _check_statement(node: ast.stmt) -> None:
    """Check a top-level statement. Allowed are docstrings, imports, classes, `run`, and its asynchronous version."""
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return
        case ast.ImportFrom(module=None, level=1) if {alias.name for alias in node.names} <= _OWN:
            return
        case ast.ImportFrom(module=str() as module, level=0) if {a.name for a in node.names} <= _IMPORTS.get(module, set()):
            return
        case ast.ClassDef(decorator_list=[], keywords=[], bases=[ast.Name(id="Enum")]):
            for member in node.body:
                _check_value(member)
            return
        case (
            ast.ClassDef(decorator_list=[], bases=[ast.Name(id="ParamsModel" | "ResultModel")])
            | ast.ClassDef(decorator_list=[], keywords=[], bases=[ast.Subscript(value=ast.Name(id="RootModel"))])
        ) if all(keyword.arg in ("extra", "nullable") for keyword in node.keywords):
            for member in node.body:
                _check_member(member)
            return
        case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=names)):
            if all(isinstance(name, ast.Constant) for name in names):
                return
        case ast.FunctionDef(name="run", decorator_list=[]):
            match node.body:
                case [ast.Return()] | [ast.Expr(value=ast.Constant(value=str())), ast.Return()]:
                    return
        case ast.Assign(
            targets=[ast.Name(id="run_async")],
            value=ast.Call(func=ast.Name(id="twin"), args=[ast.Name(id="run")], keywords=[]),
        ):
            return
    raise ValueError(f"line {node.lineno}: {type(node).__name__} is not allowed at the top of a tool's module")


def _check_member(node: ast.stmt) -> None:
    match node:
        case ast.Expr(value=ast.Constant(value=str())) | ast.AnnAssign(target=ast.Name(), simple=1):
            return
        case ast.Pass():
            return
    raise ValueError(f"line {node.lineno}: {type(node).__name__} is not allowed in the class of a tool's module")


def _check_value(node: ast.stmt) -> None:
    match node:
        case ast.Assign(targets=[ast.Name()], value=ast.Constant(value=str())):
            return
    raise ValueError(f"line {node.lineno}: {type(node).__name__} is not allowed in an enumeration")


def _check_node(node: ast.AST, classes: set[str], enums: set[str], tool: str) -> None:
    if not isinstance(node, _NODES):
        raise ValueError(  # noqa: TRY004  # not an argument of the wrong type
            f"{type(node).__name__} is not allowed in a tool's module"
        )
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        known = classes | _WORDS | _OWN | _IMPORTS["enum"] | _IMPORTS["typing"] | _IMPORTS["pydantic"]
        if node.id not in known:
            raise ValueError(f"the name {node.id!r} is not allowed in a tool's module")
    if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id in enums):
        raise ValueError(f"the attribute {ast.unparse(node)!r} is not allowed in a tool's module")
    if isinstance(node, ast.alias) and node.asname is not None:
        raise ValueError("imports cannot be renamed in a tool's module")
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called not in _CALLS or any(keyword.arg is None for keyword in node.keywords):
            raise ValueError(f"a call of {called!r} is not allowed in a tool's module")
        if called == "call":
            match node.args:
                case [
                    ast.Constant(value=name),
                    ast.Name(id="params"),
                    ast.Name(id="Result" | "str"),
                    ast.Name(id="Params"),
                ] if name == tool:
                    return
            raise ValueError(f"a tool's module calls its tool, {tool!r}, and no other")
