"""Parses the simple forms of ``exec`` and ``mcp`` without typer, which is slow to import.

`app.exec_` and `mcp.mcp` declare the same commands for typer, which parses everything else and reports errors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class _Form:
    """The options of one command that are parsed here, each with its parameter's name.

    The last of its `words` may be given alone.
    """

    flags: Mapping[str, str]
    values: Mapping[str, str]
    lists: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    words: Sequence[str] = ()


_MCP_VARIABLES = {"CELLBLOCK_MCP_PROGRAMS", "CELLBLOCK_MCP_WAIT"}
"""Variables that typer reads."""

_FORMS = {
    "exec": _Form(
        flags={"--bash": "bash", "--json": "as_json", "--for-model": "for_model"},
        values={"--name": "name", "--id": "session_id", "--timeout": "timeout", "--file": "file"},
        words=("name", "code"),
    ),
    "mcp": _Form(
        flags={
            "--no-sandbox": "no_sandbox",
            "--approve-shell-cmds": "approve_shell_cmds",
            "--programs": "programs",
            "--pictures-as-files": "pictures_as_files",
        },
        values={
            "--workspace": "workspace",
            "--approve": "approve",
            "--rules": "rules",
            "--sandbox-config": "sandbox_config",
            "--environment": "environment",
            "--isolate": "isolate",
            "--memory": "memory",
            "--session": "session_name",
        },
        lists={
            "--allow-host": "allow_hosts",
            "--allow-http": "http",
            "--preload": "preload",
            "--read": "read",
            "--secret": "secrets",
            "--write": "write",
        },
        choices={"--approve": ("auto", "ask", "rules")},
    ),
}


def plain(command: str, arguments: Sequence[str]) -> dict[str, Any] | None:
    """Parse the arguments of a command's function; return None if typer must parse them.

    Args:
        command: The command's name.
        arguments: The arguments that follow it.
    """
    form = _FORMS.get(command)
    if form is None or (command == "mcp" and _MCP_VARIABLES & os.environ.keys()):
        return None
    found: dict[str, Any] = {}
    words: list[str] = []
    left = iter(arguments)
    for argument in left:
        option, equals, value = argument.partition("=")
        if argument in form.flags:
            found[form.flags[argument]] = True
        elif option in form.values or option in form.lists:
            following = value if equals else next(left, None)
            if following is None or following not in form.choices.get(option, (following,)):
                return None
            if option in form.lists:
                found.setdefault(form.lists[option], []).append(following)
            else:
                found[form.values[option]] = following
        elif form.words and (argument == "-" or not argument.startswith("-")):
            words.append(argument)
        else:
            return None
    most = 1 if "file" in found else len(form.words)
    if len(words) > most or (len(words) == most and most and {"name", "session_id"} & {*found} and form.words):
        return None
    if command == "exec":
        return in_words(found, words)
    return {**found, **dict(zip(form.words[len(form.words) - len(words) :], words, strict=True))}


def in_words(found: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of `exec`. Two words are a session and its code; one is the code, or the session of a file.

    This form prints the code's output even to a pipe. KernelBox's ``--name NAME CODE`` prints JSON there.
    """
    names = ("name",) if found.get("file") is not None else ("name", "code")[2 - len(words) :]
    given = dict(zip(names[: len(words)], words, strict=True))
    as_text = "name" in given or not {"name", "session_id"} & {*found}
    return {**found, **given, **({"as_text": True} if as_text else {})}
