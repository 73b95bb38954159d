"""What messages advise exists: commands and their options, keyword arguments, settings and documents."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cellblock
from cellblock import tools
from cellblock.fronts.cli.app import made_command
from cellblock.service import settings
from cellblock.service.named.json_options import NamedOptions
from cli_commands import command_of, every_option, options_of, wrong_in
from sources import PACKAGE, nodes

ROOT = Path(__file__).parents[1]
_COMMAND = re.compile(r"(?:'|\(|`|: |run )cellblock ((?!was\b|is\b|has\b)(?:[a-z]|--)[^'()`]*)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
_KEYWORD = re.compile(r"(?<![\w.$/-])([a-z][a-z_]{2,})=(?![=~])")
_VARIABLE = re.compile(r"\b(?:CELLBLOCK|KERNELBOX)_[A-Z_]*[A-Z]\b")
_DOCUMENT = re.compile(r"\bdocs/[\w-]+\.md\b")
_OTHERS = re.compile(
    r"\b(?:docker|podman|incus|systemctl|systemd-run|systemd|prlimit|wsl|bwrap|srt|npm|apt-get|uv|tar|tar's|pip|namei|cgroup|nvidia-ctk)\b"
    r"|%(?:pip|%script)|--(?:bg|security-opt|ulimit)|securityContext|lsm="
)
"""Other programs, whose options messages name as well."""

_FOREIGN = {
    *("shell", "fromlist", "format", "charset", "src", "href"),
    *("lsm", "flags", "seccomp", "systempaths", "unmask", "apparmor"),
}
"""Words before a ``=`` in other languages, formats and programs."""

_MAKE_SESSIONS = ("create", "exec", "run", "attach", "load", "actions run")
_FOR_SESSIONS = (
    "--workspace",
    "--memory",
    "--read",
    "--write",
    "--host",
    "--allow-host",
    "--sandbox-config",
    "--no-sandbox",
    "--option",
)


@functools.cache
def messages() -> list[tuple[str, str]]:
    """Return each string of the package that is no docstring, with its module; values are ``X``."""
    return [*_messages()]


def _messages() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        found = nodes(path, ast.JoinedStr, ast.Expr, ast.Constant)
        parts = {id(part) for node in found if isinstance(node, ast.JoinedStr) for part in node.values}
        parts |= {id(node.value) for node in found if isinstance(node, ast.Expr)}
        for node in found:
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                text = node.value
            else:
                continue
            if re.search(r"[a-z']:? [\w(-]", text) and "\n    " not in text:  # several words, and no code
                yield path.relative_to(PACKAGE).as_posix(), text


def found(pattern: re.Pattern[str]) -> list[str]:
    """Return what a pattern finds in messages, each once."""
    return sorted({match[match.lastindex or 0] for _, text in messages() for match in pattern.finditer(text)})


def keywords() -> set[str]:
    """Return the names of arguments and fields of the public interface."""
    names = set(_FOREIGN)
    todo: list[Any] = [getattr(module, name) for module in (cellblock, tools) for name in module.__all__]
    todo += [tools.actions.save_action, tools.actions.save_parser]
    todo.append(NamedOptions)
    seen = set[int]()
    while todo:
        one = todo.pop()
        if id(one) in seen or not str(getattr(one, "__module__", "")).startswith("cellblock"):
            continue
        seen.add(id(one))
        if inspect.isclass(one):
            names |= {field.name for field in dataclasses.fields(one)} if dataclasses.is_dataclass(one) else set()
            names |= set(getattr(one, "__annotations__", ()))
            todo += [member for base in one.__mro__ for member in vars(base).values()]
            todo += [*one.__bases__]
        if callable(one):
            try:
                signature = inspect.signature(one)
            except (ValueError, TypeError):
                continue
            names |= set(signature.parameters)
            for parameter in signature.parameters.values():
                todo += typing.get_args(parameter.annotation)
    return names


def test_there_are_messages_and_hints() -> None:
    assert len(messages()) > 1500
    assert len(found(_COMMAND)) > 40
    assert len(found(_KEYWORD)) > 40


def test_commands_that_messages_name_exist() -> None:
    for hint in found(_COMMAND):
        words = [word.strip(".,;:") for word in hint.split()]
        command = command_of([*words])
        alone = not hasattr(command, "commands") or command.invoke_without_command
        assert alone or words[:1] == ["--help"], f"cellblock {hint}: there is no such command"
        assert wrong_in(words) == [], f"cellblock {hint}"


def test_options_that_messages_name_exist() -> None:
    known = every_option(made_command())
    unknown = {
        (place, option)
        for place, text in messages()
        if not _OTHERS.search(text)
        for option in _OPTION.findall(text)
        if option not in known
    }
    assert unknown == set()


def test_arguments_that_messages_name_exist() -> None:
    known = keywords()
    unknown = {(place, name) for place, text in messages() for name in _KEYWORD.findall(text) if name not in known}
    assert unknown == set()


def test_variables_that_messages_name_exist() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (PACKAGE / "common").glob("*.py"))
    known = {f"CELLBLOCK_{setting.name.upper()}" for setting in settings.explain()}
    assert [name for name in found(_VARIABLE) if name not in known and name not in source] == []


def test_documents_that_messages_name_exist() -> None:
    assert [name for name in found(_DOCUMENT) if not (ROOT / name).exists()] == []


def test_what_makes_sessions_takes_the_options_that_messages_name() -> None:
    for name in _MAKE_SESSIONS:
        assert {*_FOR_SESSIONS} <= options_of(command_of(name.split()))
