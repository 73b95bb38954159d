"""``cellblock mcp``: the MCP server."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, get_args

import typer

from cellblock.common.config import SandboxName
from cellblock.fronts.cli.arguments import (
    AllowHost,
    EnvironmentName,
    Http,
    Memory,
    NoSandbox,
    Read,
    Secrets,
    Write,
    known_names,
)

_HTTP = "Over HTTP"
_IPYBOX = "--tool-server-host", "--tool-server-port", "--kernel-gateway-host", "--kernel-gateway-port"


class _Approve(StrEnum):
    AUTO = "auto"
    ASK = "ask"
    RULES = "rules"


class _Transport(StrEnum):
    STDIO = "stdio"
    HTTP = "http"


class _Level(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"


_Unused = Annotated[str | None, typer.Option(hidden=True)]
_Workspace = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The directory that the code works in; the current one by default.")
]
_Decider = Annotated[
    _Approve, typer.Option(help="Who decides about requests of code: no one (auto), a person at the client (ask), or rules.")
]
_RulesFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Rules that decide first (docs/approvals.md).")]
_ApproveShell = Annotated[bool, typer.Option("--approve-shell-cmds", help="Ask about !commands, too.")]
_Programs = Annotated[
    bool,
    typer.Option("--programs", envvar="CELLBLOCK_MCP_PROGRAMS", help="Also offer run_program: programs beside the kernel."),
]
_SandboxConfig = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file that says what the sandbox allows (docs/sandbox.md).")
]
_Isolate = Annotated[
    str | None,
    typer.Option(metavar="KIND", help=f"What the sandbox is made of: {', '.join(get_args(SandboxName))}."),
]
_Preload = Annotated[
    list[str] | None, typer.Option(metavar="MODULE", help="A module to import when kernels start. Can be repeated.")
]
_Wait = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.1,
        envvar="CELLBLOCK_MCP_WAIT",
        help="Answer after this time that code still runs; by default before the client gives up, if its limit is known.",
    ),
]
_Pictures = Annotated[
    bool, typer.Option("--pictures-as-files", help="Keep pictures in images/, and only name them in answers.")
]
_Session = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Use this named session of the daemon, which stays when the client leaves.",
        autocompletion=known_names,
    ),
]
_Way = Annotated[_Transport, typer.Option(help="stdio for one client, http for many.")]
_Host = Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.", rich_help_panel=_HTTP)]
_Port = Annotated[
    int, typer.Option(metavar="N", min=0, max=65535, help="The port; 0 takes a free one.", rich_help_panel=_HTTP)
]
_Token = Annotated[
    str,
    typer.Option(
        metavar="TOKEN",
        envvar="CELLBLOCK_MCP_TOKEN",
        help="The token for clients; a random one by default.",
        rich_help_panel=_HTTP,
    ),
]
_NoAuth = Annotated[bool, typer.Option("--no-auth", help="Ask for no token. Loopback addresses only.", rich_help_panel=_HTTP)]
_AllowName = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST", help="A host name for clients. Can be repeated.", rich_help_panel=_HTTP),
]
_LogLevel = Annotated[_Level, typer.Option(help="What is logged to standard error.")]


def mcp(
    workspace: _Workspace = None,
    approve: _Decider = _Approve.AUTO,
    rules: _RulesFile = None,
    approve_shell_cmds: _ApproveShell = False,
    programs: _Programs = False,
    memory: Memory = None,
    read: Read = None,
    write: Write = None,
    allow_host: AllowHost = None,
    allow_http: Http = None,
    secrets: Secrets = None,
    sandbox_config: _SandboxConfig = None,
    no_sandbox: NoSandbox = False,
    sandbox: Annotated[bool, typer.Option("--sandbox", hidden=True)] = False,  # for ipybox: the default here
    isolate: _Isolate = None,
    preload: _Preload = None,
    environment: EnvironmentName = None,
    wait: _Wait = None,
    pictures_as_files: _Pictures = False,
    session: _Session = "",
    transport: _Way = _Transport.STDIO,
    host: _Host = "127.0.0.1",
    port: _Port = 8900,
    token: _Token = "",
    no_auth: _NoAuth = False,
    allow_name: _AllowName = None,
    log_level: _LogLevel = _Level.WARNING,
    tool_server_host: _Unused = None,
    tool_server_port: _Unused = None,
    kernel_gateway_host: _Unused = None,
    kernel_gateway_port: _Unused = None,
) -> int:
    """Serve Python sessions to agents over the Model Context Protocol (MCP)."""
    from cellblock.errors import InvalidInputError
    from cellblock.fronts.cli.serve_mcp import run

    _explain_ipybox(tool_server_host, tool_server_port, kernel_gateway_host, kernel_gateway_port)
    if sandbox and no_sandbox:
        raise InvalidInputError("give --sandbox or --no-sandbox, not both; there is a sandbox by default")
    return run(
        workspace=workspace,
        no_sandbox=no_sandbox,
        sandbox_config=sandbox_config,
        isolate=isolate,
        memory=memory,
        read=read,
        write=write,
        allow_hosts=allow_host,
        http=allow_http,
        secrets=secrets,
        approve=approve.value,
        rules=rules,
        approve_shell_cmds=approve_shell_cmds,
        programs=programs,
        preload=preload,
        environment=environment,
        wait=wait,
        pictures_as_files=pictures_as_files,
        session_name=session or None,
        transport=transport.value,
        host=host,
        port=port,
        auth=not no_auth,
        token=token,
        names=allow_name,
        log_level=log_level.value,
    )


def _explain_ipybox(*given: str | None) -> None:
    """Warn about ipybox's options for servers that do not exist here."""
    from cellblock.fronts.cli.problems import say

    for option, value in zip(_IPYBOX, given, strict=True):
        if value is not None:
            say(f"cellblock: {option} has no effect: sessions do not listen on any port of this machine")
