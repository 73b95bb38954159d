"""Arguments and options that several commands share."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from cellblock.common.declared import Option, declared, options_of
from cellblock.common.sandbox_options import SandboxOptions, Surroundings
from cellblock.errors import InvalidInputError
from cellblock.fronts.given_options import as_meant

RUN = "Run code"
SESSIONS = "Sessions"
STATES = "Undo, checkpoints and branches"
FILES = "Files and saved sessions"
TOOLS = "Tools and approvals"
SERVERS = "Servers"
MACHINE = "This machine"
"""The panels of `cellblock --help`, in order."""


def new_app(about: str, **options: Any) -> typer.Typer:
    """Create a group of commands with the settings that all groups share."""
    return typer.Typer(
        help=about,
        no_args_is_help=options.pop("no_args_is_help", True),
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )


def known_names(incomplete: str) -> list[str]:
    """Return names of sessions for completion; empty if no daemon runs."""
    from cellblock.errors import CellblockError
    from cellblock.fronts.where import open_if_running
    from cellblock.operations.sessions import List

    try:
        connection = open_if_running()
        names = [] if connection is None else [record["name"] for record in connection.call(List())]
    except CellblockError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _first_word(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of sessions for the first of the words, which is followed by code."""
    return [] if context.params.get("words") or context.params.get("name") else known_names(incomplete)


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME CODE",
        help="The session, if not by --name; the code, - reads it from standard input.",
        autocompletion=_first_word,
    ),
]
Session = Annotated[str, typer.Argument(metavar="NAME", help="The session's name or id.", autocompletion=known_names)]
OptionalSession = Annotated[
    str | None, typer.Argument(metavar="NAME", help="The session's name or id.", autocompletion=known_names)
]
Sessions = Annotated[
    list[str] | None, typer.Argument(metavar="NAME...", help="The sessions' names or ids.", autocompletion=known_names)
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="The session's name.", autocompletion=known_names)]
Id = Annotated[str | None, typer.Option("--id", metavar="ID", help="The session's id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON even in a terminal.")]
ForModel = Annotated[bool, typer.Option("--for-model", help="Print one short text for a language model, errors included.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class _NewSession(Surroundings):
    """The flags of commands that make sessions."""

    clone: bool = declared(False, "Work in a clone of the git repository, where the code can commit.", "--clone")
    option: tuple[str, ...] = declared(
        (), "Any other option, such as idle_timeout=600. Can be repeated.", "--option", "-o", metavar="KEY=VALUE"
    )


def makes_sessions(command: Callable[..., int]) -> Callable[..., int]:
    """Replace a command's parameter `options`, a dict, by the options of a session."""
    return takes(_NewSession, made=made_options)(command)


def makes_kernels(command: Callable[..., int]) -> Callable[..., int]:
    """Do the same for a command whose sessions use Jupyter's working directory."""
    return takes(_NewSession, without=("workspace", "clone", "option"), made=made_options)(command)


def changes_policies(command: Callable[..., int]) -> Callable[..., int]:
    """Do the same with the options of `SandboxOptions` alone."""
    return takes(SandboxOptions, without=("secrets",), made=made_options)(command)


def takes(
    declaring: type,
    *,
    without: Collection[str] = (),
    completions: Mapping[str, Callable[[str], list[str]]] | None = None,
    made: Callable[..., dict[str, Any]] = dict,
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Replace a command's parameter `options` by the flags of a declaration.

    Args:
        declaring: The dataclass of the options.
        without: Options that the command does not have.
        completions: Functions that complete values, by option.
        made: Makes the command's `options` from those that were given.
    """

    def named(command: Callable[..., int]) -> Callable[..., int]:
        signature = inspect.signature(command, eval_str=True)
        taken = {f"--{name}" for name in signature.parameters}
        found = [option for option in options_of(declaring, taken) if option.name not in without]
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.name == "options":
                parameters += [_parameter(option, (completions or {}).get(option.name)) for option in found]
            else:
                parameters.append(parameter)

        @functools.wraps(command)
        def with_options(**given: Any) -> int:
            values = {option.name: _value(option, given.pop(option.name)) for option in found}
            return command(**given, options=made(**{name: value for name, value in values.items() if value is not None}))

        with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
        with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_options

    return named


def _parameter(option: Option, complete: Callable[[str], list[str]] | None) -> inspect.Parameter:
    """Return an option as typer reads it."""
    more = dict(option.more)
    limits = {"min": more.pop("ge", None), "max": more.pop("le", None), "autocompletion": complete}
    about = more.pop("about")
    kind: Any
    kind, default = option.kind, option.default
    if option.choices:
        kind = _choices(option.choices)
        default = kind(default)
    elif kind is bool:
        default = False
    elif kind is list:
        kind, default = list[str] | None, None
    elif kind in (str, Path) or default is None:
        more |= {"parser": parser} if (parser := {str: _text, Path: path}.get(kind)) else {}
        kind, default = kind | None, (default or None) if kind is str else None
    annotation = Annotated[kind, typer.Option(*option.flags, help=about, **limits, **more)]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def path(text: str) -> Path:
    """Return a path, but not the current directory for an empty text, which may be a variable without a value."""
    if not text:
        raise typer.BadParameter("the path is empty; the current directory is '.'")
    return Path(text)


def _text(text: str) -> str:
    """Return a text that is not empty: a shell passes an empty one for a variable without a value."""
    if not text:
        raise typer.BadParameter("the value is empty; leave the option out for its default")
    return text


def _choices(names: Sequence[str], make: Any = StrEnum) -> Any:
    """Return an enumeration, as typer takes choices."""
    return make("Choice", {name: name for name in names})


def _value(option: Option, given: Any) -> Any:
    """Return the value of an option; None for its default."""
    if option.kind is bool:
        return option.default is False if given else None
    return given.value if option.choices else given


def made_options(
    workspace: Path | None = None,
    clone: bool = False,
    sandbox_config: Path | None = None,
    option: Sequence[str] = (),
    **others: Any,
) -> dict[str, Any]:
    """Convert these arguments to options of a new session."""
    options = {name: value for name, value in others.items() if value not in ("", [])}
    if sandbox_config is not None:
        options["sandbox_config"] = os.path.abspath(sandbox_config)
    options |= _options(option)
    if workspace is not None:
        options["working_dir"] = os.path.abspath(workspace)
    if clone:
        options["workspace"] = "clone"
    return as_meant(options)


def _options(given: Sequence[str]) -> dict[str, Any]:
    """Return options by name. Values are parsed as JSON if possible; repeated names make a list."""
    import json

    options: dict[str, Any] = {}
    for name, text in (pair("--option", each) for each in given):
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if name in options:
            before = options[name]
            value = [*(before if isinstance(before, list) else [before]), value]
        options[name] = value
    return options


def pair(option: str, text: str) -> tuple[str, str]:
    """Split an option's value at its first ``=``.

    Raises:
        InvalidInputError: The value has no ``=``.
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidInputError(f"{option} takes KEY=VALUE, not {text!r}")
    return key, value
