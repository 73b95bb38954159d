"""Arguments and options that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from cellblock.common.sandbox_options import SandboxOptions
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
_DECLARED = {item.name: item.metadata for item in dataclasses.fields(SandboxOptions)}


def _declared(name: str, *flags: str) -> Any:
    """Return an option of `SandboxOptions` for typer."""
    known = _DECLARED[name]
    return typer.Option(*(flags or known["flags"]), metavar=known["metavar"], help=known["help"])


Memory = Annotated[str | None, _declared("memory")]
Read = Annotated[list[str] | None, _declared("read")]
Write = Annotated[list[str] | None, _declared("write")]
Hosts = Annotated[list[str] | None, _declared("hosts")]
AllowHost = Annotated[list[str] | None, _declared("hosts", "--allow-host")]
"""The same for commands whose ``--host`` is the address to listen on."""
Http = Annotated[list[str] | None, _declared("http")]
Secrets = Annotated[list[str] | None, _declared("secrets")]
EnvironmentName = Annotated[
    str | None,
    typer.Option("--environment", metavar="NAME", help="The environment with the packages ('cellblock env list' shows them)."),
]
SandboxConfig = Annotated[
    str | None,
    typer.Option("--sandbox-config", metavar="FILE", help="What the sandbox allows: a file (docs/sandbox.md)."),
]
NoSandbox = Annotated[bool, typer.Option("--no-sandbox", help="Run the code without a sandbox, with all your rights.")]
ForModel = Annotated[bool, typer.Option("--for-model", help="Print one short text for a language model, errors included.")]
Workspace = Annotated[
    str | None, typer.Option("--workspace", metavar="DIR", help="The working directory; by default the current one.")
]
Clone = Annotated[bool, typer.Option("--clone", help="Work in a clone of the git repository, where the code can commit.")]
Option = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="Any other option, such as idle_timeout=600. Can be repeated."),
]


_OF_SESSIONS: dict[str, Any] = {
    "workspace": Workspace,
    "clone": Clone,
    "memory": Memory,
    "read": Read,
    "write": Write,
    "hosts": Hosts,
    "http": Http,
    "secrets": Secrets,
    "environment": EnvironmentName,
    "sandbox_config": SandboxConfig,
    "no_sandbox": NoSandbox,
    "option": Option,
}
_OF_SERVERS = _OF_SESSIONS | {"hosts": AllowHost}
_OF_POLICIES = {name: _OF_SESSIONS[name] for name in ("memory", "read", "write", "hosts", "http")}
_OF_KERNELS = {name: kind for name, kind in _OF_SESSIONS.items() if name not in ("workspace", "clone", "option")}


def makes_sessions(command: Callable[..., int]) -> Callable[..., int]:
    """Replace a command's parameter `options`, a dict, by the options of a session."""
    return _with_options(command, _OF_SESSIONS)


def serves_sessions(command: Callable[..., int]) -> Callable[..., int]:
    """Do the same for a server, whose ``--host`` is the address to listen on."""
    return _with_options(command, _OF_SERVERS)


def makes_kernels(command: Callable[..., int]) -> Callable[..., int]:
    """Do the same for a command whose sessions use Jupyter's working directory."""
    return _with_options(command, _OF_KERNELS)


def changes_policies(command: Callable[..., int]) -> Callable[..., int]:
    """Do the same with the options of `SandboxOptions` alone."""
    return _with_options(command, _OF_POLICIES)


def _with_options(command: Callable[..., int], kinds: Mapping[str, Any]) -> Callable[..., int]:
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name != "options":
            parameters.append(parameter)
            continue
        for name, kind in kinds.items():
            default = False if kind in (NoSandbox, Clone) else None
            parameters.append(inspect.Parameter(name, parameter.kind, default=default, annotation=kind))

    @functools.wraps(command)
    def with_options(**given: Any) -> int:
        options = made_options(**{name: given.pop(name) for name in kinds})
        return command(**given, options=options)

    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options


def made_options(
    workspace: str | None = None,
    clone: bool = False,
    sandbox_config: str | None = None,
    no_sandbox: bool = False,
    option: list[str] | None = None,
    **sandbox: Any,
) -> dict[str, Any]:
    """Convert these arguments to options of a new session."""
    options = {name: value for name, value in sandbox.items() if value}
    if sandbox_config is not None:
        options["sandbox_config"] = os.path.abspath(sandbox_config)
    if no_sandbox:
        options["sandbox"] = False
    options |= _options(option or [])
    if workspace is not None:
        options["working_dir"] = os.path.abspath(workspace)
    if clone:
        options["workspace"] = "clone"
    return as_meant(options)


def _options(given: list[str]) -> dict[str, Any]:
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
