"""What messages advise exists: commands, and their options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import cellblock
from cellblock.fronts.cli.app import made_command

_SOURCES = Path(cellblock.__file__).parent
_HINT = re.compile(r"'cellblock ([a-z][^']*)'|\(cellblock ([a-z][^()]*)\)")
_MADE = (
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


def hints() -> list[str]:
    found = set()
    for file in _SOURCES.rglob("*.py"):
        found |= {one or two for one, two in _HINT.findall(file.read_text())}
    return sorted(found)


def command_of(words: list[str]) -> Any:
    """Return the command that words name."""
    command = made_command()
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    return command


def options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def test_there_are_hints() -> None:
    assert len(hints()) > 20


@pytest.mark.parametrize("hint", hints())
def test_what_a_hint_names_exists(hint: str) -> None:
    words = hint.split()
    command = command_of(words)
    alone = not hasattr(command, "commands") or command.invoke_without_command
    assert alone, f"cellblock {hint}: there is no such command"
    named = [word.partition("=")[0] for word in words if re.fullmatch(r"--?[a-z][a-z-]*(=.*)?", word)]
    assert {*named} <= options_of(command) | {"--help", "-h"}, f"cellblock {hint}"


@pytest.mark.parametrize("name", ["create", "exec", "run", "attach", "load", "actions run"])
def test_what_makes_sessions_takes_the_options_that_hints_name(name: str) -> None:
    assert {*_MADE} <= options_of(command_of(name.split()))
