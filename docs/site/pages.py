"""Generates pages of the site from the code: modules, messages between processes, requests to the daemon, and errors."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from cellblock import errors
from cellblock.operations import OPERATIONS
from cellblock.wire import control, copies, datagrams, fields, frames, messages, program_messages, sandbox
from cellblock.wire.protocol import TRANSITIONS

PACKAGE = Path(__file__).parents[2] / "src" / "cellblock"

_CONTROL = {
    "Host → fork server": control.TO_LAUNCHER,
    "Fork server → host": control.FROM_LAUNCHER,
    "Host → init, before the fork": control.TO_NEW_INIT,
    "Host → init": control.TO_INIT,
    "Init → host": control.FROM_INIT,
    "Init → worker": control.TO_WORKER,
    "Init → fork server or guard": control.TO_MAKER,
    "Host → watcher, in a file": program_messages.SPECIFICATION,
    "Host → watcher": program_messages.TO_WATCHER,
    "Watcher → host": program_messages.FROM_WATCHER,
    "Host → init, about copies": copies.TO_FAMILY,
    "Init → host, about copies": copies.FROM_FAMILY,
    "Init → copy": copies.TO_COPY,
    "Copy → init": copies.FROM_COPY,
    "Host → init of an MCP server": control.TO_SERVER,
    "Init of an MCP server → host": control.FROM_SERVER,
}
_ERRORS = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}
_LIMITS = (frames, fields, datagrams, control, program_messages)
_NO_LIMITS = ("VERSION", "EXIT_")


def modules() -> str:
    """Return the page of modules: each with the first sentence of its docstring."""
    folders: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        folder = folders.setdefault(str(path.parent.relative_to(PACKAGE.parent)), [])
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        folder.append(f"| `{path.stem}` | {_cell(_first_sentence(text))} |")
    parts = [f"## `{folder}/`\n\n| module | what it does |\n|---|---|\n" + "\n".join(rows) for folder, rows in folders.items()]
    return "\n\n".join(
        ["# Modules", "The modules of the package. [Architecture](../architecture.md) says how they work together.", *parts]
    )


def wire() -> str:
    """Return the page of messages, limits and transitions."""
    sides = {"Host → worker": get_args(messages.ToWorker), "Worker → host": get_args(messages.ToHost)}
    return "\n\n".join(
        [
            f"# Messages\n\n[The wire protocol](../wire.md) says how messages travel. This is version {frames.VERSION}.",
            "## Channel",
            *(f"### {title}\n\n{_table((kind.type, kind) for kind in kinds)}" for title, kinds in sides.items()),
            f"## States of the channel\n\n{_transitions()}",
            "## Control sockets",
            *(f"### {title}\n\n{_table(incoming.kinds.items())}" for title, incoming in _CONTROL.items()),
            f"## Steps of a sandbox\n\n{_table((kind.kind, kind) for kind in get_args(sandbox.Step))}",
            f"## Limits\n\n{_limits()}",
        ]
    )


def requests() -> str:
    """Return the page of requests to the daemon."""
    return "\n\n".join(
        [
            "# Requests to the daemon",
            "[The daemon](../daemon.md) says how requests travel and what they promise. *Route* is the request over HTTP.",
            *(_request(name, kind) for name, kind in OPERATIONS.items()),
        ]
    )


def problems() -> str:
    """Return the page of error messages, by class."""
    found: dict[str, list[str]] = {name: [] for name in _ERRORS}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).with_suffix("").as_posix()
        for name, text in raised(ast.parse(path.read_text(encoding="utf-8"))):
            if (row := f"| {_cell(_literal(text))} | `{place}` |") not in found[name]:
                found[name].append(row)
    parts = [
        f"## {name}\n\n{_summary(_ERRORS[name])}\n\n| message | raised in |\n|---|---|\n" + "\n".join(rows)
        for name, rows in found.items()
        if rows
    ]
    about = "What cellblock raises, and the texts. `{…}` stands for a value. [The classes](errors.md) are a tree."
    return "\n\n".join(["# Error messages", about, *parts])


def raised(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each error that a module creates: the name of its class, and its message with placeholders."""
    constants = {
        node.targets[0].id: node.value
        for node in ast.walk(module)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ERRORS and node.args:
            for text in _texts(node.args[0], constants):
                if re.search(r"\w \w", text):
                    yield node.func.id, text


def _texts(node: ast.expr, constants: dict[str, ast.expr], deep: int = 3) -> Iterator[str]:
    """Yield the texts that an expression can be."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else _placeholder(part) for part in values)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            for one in _texts(left, constants, deep):
                yield from (one + two for two in _texts(right, constants, deep))
        case ast.IfExp(body=body, orelse=orelse):
            yield from _texts(body, constants, deep)
            yield from _texts(orelse, constants, deep)
        case ast.Name(id=name) if name in constants and deep:
            yield from _texts(constants[name], constants, deep - 1)
        case _:
            yield "{…}"


def _placeholder(part: ast.expr) -> str:
    """Return the placeholder of a value: its name, if it has one."""
    value = part.value if isinstance(part, ast.FormattedValue) else part
    while isinstance(value, ast.Call | ast.Subscript):
        value = (
            value.args[0]
            if isinstance(value, ast.Call) and value.args
            else value.func
            if isinstance(value, ast.Call)
            else value.value
        )
    name = value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""
    return "{" + (name.strip("_") or "…") + "}"


def _literal(text: str) -> str:
    """Return a text as it is, in a cell of Markdown."""
    return re.sub(r"([<>*_\[\]`\\])", r"\\\1", text)


def _request(name: str, kind: Any) -> str:
    route = f" Route: `{kind.route.method} {kind.route.path}`." if kind.route else ""
    repeatable = " Idempotent." if kind.repeatable else ""
    lines = [f"| `{field}` | {_cell(_code(hint))} | {_cell(text)} |" for field, hint, text in _fields(kind)]
    table = "\n".join(["", "", "| field | type | meaning |", "|---|---|---|", *lines]) if lines else ""
    return f"## {name}\n\n{_summary(kind)}{route}{repeatable}{table}"


def _table(kinds: Iterable[tuple[str, Any]]) -> str:
    lines = ["| message | field | type | meaning |", "|---|---|---|---|"]
    for name, kind in kinds:
        lines.append(f"| `{name}` | | | {_cell(_summary(kind))} |")
        lines += [f"| | `{field}` | {_cell(_code(hint))} | {_cell(text)} |" for field, hint, text in _fields(kind)]
    return "\n".join(lines)


def _transitions() -> str:
    lines = ["| state | sender | message | next state |", "|---|---|---|---|"]
    for state, row in TRANSITIONS.items():
        lines += [f"| {state.value} | {side.value} | `{kind}` | {then.value} |" for (side, kind), then in row.items()]
    return "\n".join(lines)


def _limits() -> str:
    lines = ["| limit | value | meaning |", "|---|---|---|"]
    for module in _LIMITS:
        meanings = dict(_meanings(ast.parse(inspect.getsource(module)).body))
        lines += [
            f"| `{name}` | {value} | {_cell(meanings.get(name, ''))} |"
            for name, value in vars(module).items()
            if name.isupper() and type(value) is int and not name.startswith(_NO_LIMITS) and name in meanings
        ]
    return "\n".join(lines)


def _fields(kind: Any) -> Iterator[tuple[str, str, str]]:
    """Yield each field of a message with its type and its meaning."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    hints = {ast.unparse(node.target): ast.unparse(node.annotation) for node in body.body if isinstance(node, ast.AnnAssign)}
    meanings = {**_attributes(inspect.getdoc(kind) or ""), **dict(_meanings(body.body))}
    for field in dataclasses.fields(kind):
        yield field.name, hints.get(field.name, ""), meanings.get(field.name, "")


def _meanings(nodes: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield each assigned name with the text that documents it: a string after the assignment, or nothing."""
    for node, following in zip(nodes, [*nodes[1:], None], strict=True):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = str(following.value.value)
        for target in targets:
            if text or isinstance(node, ast.Assign):
                yield ast.unparse(target), text


def _attributes(docstring: str) -> dict[str, str]:
    """Return the meanings of fields that the section ``Attributes`` of a docstring has."""
    section = re.split(r"\n\n(?=\w+:\n)", docstring.partition("Attributes:\n")[2])[0]
    return {found[1]: found[2] for found in re.finditer(r"^    (\w+): ((?:.+\n?)(?:^ {8}.+\n?)*)", section, re.MULTILINE)}


def _summary(kind: Any) -> str:
    return " ".join(re.split(r"\n\n(?=\w+:\n)", inspect.getdoc(kind) or "")[0].split())


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[^.]{3})\. (?=[A-Z`])", " ".join(text.partition("\n\n")[0].split()))[0].rstrip(".")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
