"""The commands of ``cellblock`` and their options, as typer declares them."""

from __future__ import annotations

import re
from typing import Any

from cellblock.fronts.cli.app import made_command


def command_of(words: list[str]) -> Any:
    """Return the command that words name, and remove its name from them."""
    command = made_command()
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    return command


def options_of(command: Any) -> set[str]:
    """Return the options of a command."""
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def every_option(command: Any) -> set[str]:
    """Return the options of a command and of all commands below it."""
    return options_of(command).union(*(every_option(one) for one in getattr(command, "commands", {}).values()), {"--help"})


def wrong_in(words: list[str]) -> list[str]:
    """Return what does not exist of the command and the options that words name: an empty list for a correct command line."""
    words = [*words]
    command = command_of(words)
    if (
        hasattr(command, "commands")
        and not command.invoke_without_command
        and words[:1] not in ([], ["--help"], ["--version"])
    ):
        return words[:1]
    end = next((index for index, word in enumerate(words) if word == "--" or word.endswith(".py")), None)
    words = words[:end]  # what follows is for another program
    named = [word.partition("=")[0] for word in words if re.fullmatch(r"--?[a-z][a-z0-9-]*(=.*)?", word)]
    return [word for word in named if word not in options_of(command) | {"--help", "-h"}]
