"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cellblock.errors import InvalidInputError

RUN = "Run code"
SESSIONS = "Sessions"
STATES = "Undo, checkpoints and branches"
FILES = "Files and saved sessions"
TOOLS = "Tools and approvals"
SERVERS = "Servers"
MACHINE = "This machine"
"""The panels of `cellblock --help`, in order."""


def new_app(about: str, **options: Any) -> typer.Typer:
    """Return a group of commands with the settings that all groups share."""
    return typer.Typer(
        help=about,
        no_args_is_help=options.pop("no_args_is_help", True),
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )


def known_names(incomplete: str) -> list[str]:
    """Return names of sessions for completion; empty if there is no daemon."""
    from cellblock.errors import CellblockError
    from cellblock.fronts.where import open_if_running
    from cellblock.operations.sessions import List

    try:
        connection = open_if_running()
        names = [] if connection is None else [record["name"] for record in connection.call(List())]
    except CellblockError:
        return []
    return [name for name in names if name.startswith(incomplete)]


Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME CODE", help="The session, if not by --name; the code, - reads it from standard input."),
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
AllowHost = Annotated[
    list[str] | None, typer.Option("--allow-host", metavar="HOST", help="Let the code reach this host. Can be repeated.")
]
SandboxConfig = Annotated[
    str | None,
    typer.Option("--sandbox-config", metavar="FILE", help="What the sandbox allows: a file (docs/sandbox.md)."),
]
NoSandbox = Annotated[bool, typer.Option("--no-sandbox", help="Run the code without a sandbox, with all your rights.")]
ForModel = Annotated[bool, typer.Option("--for-model", help="Print one short text for a language model, with errors in it.")]
Workspace = Annotated[str | None, typer.Option("--workspace", metavar="DIR", help="Where the code works; by default here.")]
Option = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="Any other option, such as idle_timeout=600. Can be repeated."),
]


def made_options(
    workspace: str | None,
    allow_host: list[str] | None,
    sandbox_config: str | None,
    no_sandbox: bool,
    option: list[str] | None,
) -> dict[str, Any]:
    """Return these arguments as options of a new session."""
    import os

    given = sandbox_options(allow_host, sandbox_config, no_sandbox) | _options(option or [])
    if workspace is not None:
        given["working_dir"] = os.path.abspath(workspace)
    return given


def _options(given: list[str]) -> dict[str, Any]:
    """Return options by name: values are parsed as JSON if possible, else taken as text; repeated names make a list."""
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
        InvalidInputError: There is none.
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidInputError(f"{option} takes KEY=VALUE, not {text!r}")
    return key, value


def sandbox_options(allow_host: list[str] | None, sandbox_config: str | None, no_sandbox: bool) -> dict[str, Any]:
    """Return these arguments as options of a session."""
    import os

    options: dict[str, Any] = {"allow_hosts": allow_host} if allow_host else {}
    if sandbox_config is not None:
        options["sandbox_config"] = os.path.abspath(sandbox_config)
    if no_sandbox:
        options["sandbox"] = False
    return options
