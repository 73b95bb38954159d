"""The commands of ``cellblock``, declared for typer; each loads what it needs when it runs."""

from __future__ import annotations

import functools
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from cellblock.errors import did_you_mean
from cellblock.fronts.cli import (
    actions,
    approval_commands,
    checkpoint_commands,
    cluster,
    daemon,
    environment_commands,
    file_commands,
    kernelspec,
    machine,
    mcp,
    program_commands,
    save_commands,
    secret_commands,
    session_commands,
    tokens,
    tools,
    web_console,
)
from cellblock.fronts.cli.arguments import (
    FILES,
    MACHINE,
    RUN,
    SERVERS,
    SESSIONS,
    TOOLS,
    ForModel,
    Id,
    Json,
    Name,
    Session,
    Words,
    makes_sessions,
    new_app,
)
from cellblock.fronts.cli.problems import OK, USAGE, say

app = new_app("""Sandboxed, stateful IPython sessions for AI agents.

Try it: cellblock exec demo "prices = [3, 4]; sum(prices)"

In a terminal, output is for people; in a pipe, or with --json, it is JSON.
""")
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""click's `UsageError`, wherever typer has it from."""

COMPLETE = "_CELLBLOCK_COMPLETE"
_MEANT = {
    "delete": "destroy",
    "eval": "exec",
    "help": "--help",
    "kill": "destroy",
    "new": "create",
    "pip": "install",
    "ps": "processes",
    "python": "attach",
    "rm": "destroy",
    "shell": "sh",
    "stop": "destroy",
    "version": "--version",
}
"""Suggestions for commands that other programs have."""
_SHELLS = ("bash", "zsh", "fish", "powershell")


def run(arguments: list[str]) -> int:
    """Run a command; return the exit status.

    Raises:
        CellblockError: The command failed.
    """
    if asked := os.environ.get(COMPLETE):
        _complete(asked)
        return OK
    command = made_command()
    try:
        # typer's own main() handles closed pipes and exit statuses differently.
        with command.make_context("cellblock", arguments) as context:
            status: int = command.invoke(context)
    except _USAGE_ERROR as error:
        return _say_how(error, arguments)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except typer.Exit as end:
        return end.exit_code
    return status


@functools.cache
def made_command() -> Any:
    """Create click's command from these declarations. Cached, because it takes as long as most commands."""
    return typer.main.get_command(app)


def _show_types_of_values_only() -> None:
    """Hide the types of flags and arguments in the help: flags take no value, and names of arguments say enough.

    Newer versions of typer show them; with older ones, this changes nothing.
    """
    for kind in (typer.core.TyperOption, typer.core.TyperArgument):
        kind.display_type_rich = _type_shown(getattr(kind, "display_type_rich", None))  # type: ignore[method-assign]


def _type_shown(original: Any) -> Any:
    def shown(parameter: Any, ctx: Any) -> str | None:
        if parameter.param_type_name == "argument" or parameter.is_flag:
            return None
        found: str | None = original(parameter, ctx)
        return found

    return shown


def _complete(what: str) -> None:
    """Print the completion script for a shell, or the candidates at its cursor."""
    from typer.completion import completion_init  # type: ignore[attr-defined]  # typer has it, and does not list it

    completion_init()
    os.environ[COMPLETE] = what
    with suppress(SystemExit):
        app(args=[], prog_name="cellblock")


def _say_how(error: Any, arguments: list[str]) -> int:
    """Print a usage error in one line, with the help command for the right usage."""
    context = error.ctx
    path = context.command_path if context is not None else "cellblock"
    message = error.format_message().rstrip(".").replace("Value error, ", "")
    if not message:
        return USAGE  # no command was given, so the help was printed
    commands = getattr(getattr(context, "command", None), "commands", {})
    unknown = next((word for word in arguments if not word.startswith("-") and word not in path.split()), "")
    if commands and "No such command" in message:
        meant = _MEANT.get(unknown) if path == "cellblock" else None
        hint = f"; did you mean {meant!r}?" if meant else did_you_mean(unknown, commands)
        message = f"there is no command {unknown!r}{hint}"
    say(f"cellblock: {message[:1].lower()}{message[1:]} (see '{path} --help')")
    return USAGE


def _version(asked: bool) -> None:
    if asked:
        from cellblock.common.version import __version__

        print(f"cellblock {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Handle the options that belong to no command."""


@app.command("exec", rich_help_panel=RUN)
@makes_sessions
def exec_(
    words: Words = None,
    name: Name = None,
    session_id: Id = None,
    bash: Annotated[bool, typer.Option("--bash", help="The code is for bash.")] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="SECONDS", help="How long the code may run; two minutes by default.")
    ] = None,
    file: Annotated[str | None, typer.Option("--file", "-f", metavar="FILE", help="Run the code in this file.")] = None,
    *,
    options: dict[str, Any],
    for_model: ForModel = False,
    as_json: Json = False,
) -> int:
    """Run code in a session, and create the session if it does not exist.

    The options from --workspace to --option apply to a new session.
    """
    from cellblock.fronts.cli import execute
    from cellblock.fronts.cli.quick import in_words

    words = words or []
    if len(words) > (1 if file is not None else 2) or (words and file is not None and (name or session_id)):
        say("cellblock: a session and its code are expected; put the code in quotes (see 'cellblock exec --help')")
        return USAGE
    if len(words) == 2 and (name or session_id):
        say("cellblock: the session is named twice; put the code in quotes (see 'cellblock exec --help')")
        return USAGE
    given: dict[str, Any] = {
        name_: value
        for name_, value in (("name", name), ("session_id", session_id), ("file", file), ("timeout", timeout))
        if value is not None
    }
    return execute.run(**in_words(given, words), bash=bash, as_json=as_json, for_model=for_model, options=options or None)


@app.command("run", rich_help_panel=RUN, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@makes_sessions
def run_script(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The script; - reads it from standard input.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Its arguments.")] = None,
    *,
    options: dict[str, Any],
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="SECONDS", help="How long the script may run; no limit by default.")
    ] = None,
    for_model: ForModel = False,
) -> int:
    """Run a script in a sandbox of its own and exit with its status."""
    from cellblock.fronts.cli import script

    if file.startswith("-") and file != "-":
        say(f"cellblock: no such option: {file} (see 'cellblock run --help'; a script of this name is ./{file})")
        return USAGE
    return script.run(file, arguments or [], options, timeout, for_model=for_model)


@app.command(rich_help_panel=RUN)
@makes_sessions
def attach(
    name: Session,
    *,
    options: dict[str, Any],
) -> int:
    """Open a console on a session, and create the session if it does not exist.

    The options apply to a new session.
    """
    from cellblock.fronts.cli import console

    return console.attach(name, options)


@makes_sessions
def serve(
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=65535, help="The port, 8080 by default; 0 takes a free one.")
    ] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Ask for no tokens. Loopback addresses only.")] = False,
    allow_name: Annotated[
        list[str] | None,
        typer.Option("--allow-name", metavar="HOST", help="A host name for clients. Can be repeated."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", metavar="ORIGIN", help="A web site that may use it. Can be repeated."),
    ] = None,
    ports_domain: Annotated[
        str,
        typer.Option(metavar="URL", help="Show pages of servers in sessions below https://ports.example.org, or the like."),
    ] = "",
    certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="A TLS certificate.")] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate's private key, if it is in another file.")
    ] = None,
    e2b: Annotated[
        bool, typer.Option("--e2b", help="Serve programs for E2B (E2B_DEBUG=true), at ports 49999 and 49983 (docs/e2b.md).")
    ] = False,
    publish: Annotated[
        list[int] | None,
        typer.Option(
            metavar="PORT", min=1, max=65535, help="With --e2b: show this port of the sandbox at localhost. Can be repeated."
        ),
    ] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Serve the sessions of this Ray cluster (docs/cluster.md).")
    ] = None,
    *,
    options: dict[str, Any],
) -> int:
    """Serve sessions over HTTP until Ctrl-C.

    The options from --workspace to --option apply to new sessions.
    """
    from cellblock.fronts.gateway.gateway_options import GatewayOptions

    if ray is not None:
        os.environ["CELLBLOCK_RAY_ADDRESS"] = ray
    if publish and not e2b:
        say("cellblock: --publish needs --e2b; 'cellblock open NAME PORT' opens other sessions' pages")
        return USAGE
    if e2b:
        from cellblock.fronts.e2b.serve import serve as serve_http
    else:
        from cellblock.fronts.gateway.serve import serve as serve_http

    setup = GatewayOptions(
        auth=not no_auth,
        hosts=tuple(allow_name or ()),
        allowed_origins=tuple(allow_origin or ()),
        ports_domain=ports_domain,
        publish=tuple(publish or ()),
        session_options=options,
    )
    serve_http(host, *([] if port is None else [port]), options=setup, certificate=certificate, key=key)
    return 0


def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help=f"One of {', '.join(_SHELLS)}.")],
) -> int:
    """Print the script with which a shell completes commands and names of sessions.

    For bash: cellblock completion bash > ~/.local/share/bash-completion/completions/cellblock
    """
    if shell not in _SHELLS:
        say(f"cellblock: there is no completion for {shell!r}: it is one of {', '.join(_SHELLS)}")
        return USAGE
    _complete(f"source_{shell}")
    return 0


session_commands.add_to(app)
program_commands.add_to(app)
checkpoint_commands.add_to(app)
save_commands.add_to(app)
secret_commands.add_to(app)
app.command("serve", rich_help_panel=SERVERS)(serve)
web_console.add_to(app)
app.command("mcp", rich_help_panel=SERVERS)(mcp.mcp)
machine.add_to(app)
app.command("completion", rich_help_panel=MACHINE)(completion)
app.add_typer(actions.app, name="actions", rich_help_panel=TOOLS)
app.add_typer(approval_commands.app, name="approvals", rich_help_panel=TOOLS)
app.add_typer(cluster.app, name="cluster", rich_help_panel=SERVERS)
app.add_typer(daemon.app, name="daemon", rich_help_panel=SERVERS)
app.add_typer(environment_commands.app, name="env", rich_help_panel=SESSIONS)
app.add_typer(file_commands.app, name="files", rich_help_panel=FILES)
app.add_typer(tokens.app, name="tokens", rich_help_panel=SERVERS)
app.add_typer(kernelspec.app, name="kernelspec", rich_help_panel=SERVERS)
app.add_typer(tools.app, name="tools", rich_help_panel=TOOLS)
_show_types_of_values_only()
