"""Parses the simple forms of ``exec`` and ``mcp`` without typer, which is slow to import.

`app.exec_` and `mcp.mcp` declare the same commands for typer, which parses everything else and reports errors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class _Form:
    """The options of one command that are parsed here, each with its parameter's name.

    The last of its `words` may be given alone.
    """

    flags: Mapping[str, tuple[str, bool]]
    values: Mapping[str, str]
    lists: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    words: Sequence[str] = ()


_EXEC = _Form(
    flags={"--bash": ("bash", True), "--json": ("as_json", True), "--for-model": ("for_model", True)},
    values={"--name": "name", "--id": "session_id", "--timeout": "timeout", "--file": "file"},
    words=("name", "code"),
)


def _form_of(command: str) -> _Form | None:
    """Return the form of a command; None if typer must parse it, also because it reads variables for the options."""
    if command == "exec":
        return _EXEC
    if command != "mcp":
        return None
    from cellblock.common.declared import options_of
    from cellblock.fronts.mcp_server.server_options import ServerOptions

    found = options_of(ServerOptions)
    if any(option.more.get("envvar", "") in os.environ for option in found):
        return None
    named = [(flag, option) for option in found for flag in option.flags]
    return _Form(
        flags={flag: (option.name, not option.default) for flag, option in named if option.kind is bool},
        values={flag: option.name for flag, option in named if option.kind in (str, Path)},
        lists={flag: option.name for flag, option in named if option.kind is list},
        choices={flag: option.choices for flag, option in named if option.choices},
    )


def plain(command: str, arguments: Sequence[str]) -> dict[str, Any] | None:
    """Parse the arguments of a command's function; return None if typer must parse them.

    Args:
        command: The command's name.
        arguments: The arguments that follow it.
    """
    form = _form_of(command)
    if form is None:
        return None
    found: dict[str, Any] = {}
    words: list[str] = []
    left = iter(arguments)
    for argument in left:
        option, equals, value = argument.partition("=")
        if argument in form.flags:
            name, given = form.flags[argument]
            found[name] = given
        elif option in form.values or option in form.lists:
            following = value if equals else next(left, None)
            if following is None or following not in form.choices.get(option, (following,)):
                return None
            if not following and command == "mcp":  # an empty path, which typer refuses
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
