"""``cellblock mcp``: the MCP server."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cellblock.cli.arguments import AllowHost, NoSandbox

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


def mcp(
    workspace: Annotated[Path, typer.Option(metavar="DIR", help="The directory that the code works in.")] = Path(),
    approve: Annotated[
        _Approve, typer.Option(help="Who decides about what code asks for: nobody, a person at the client, or rules.")
    ] = _Approve.AUTO,
    rules: Annotated[Path | None, typer.Option(metavar="FILE", help="Rules that decide first (docs/approvals.md).")] = None,
    approve_shell_cmds: Annotated[bool, typer.Option("--approve-shell-cmds", help="Ask about !commands, too.")] = False,
    allow_host: AllowHost = None,
    sandbox_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file that says what the sandbox allows (docs/sandbox.md).")
    ] = None,
    no_sandbox: NoSandbox = False,
    sandbox: Annotated[bool, typer.Option("--sandbox", hidden=True)] = False,  # ipybox: what is the default here
    isolate: Annotated[
        str | None, typer.Option(metavar="KIND", help="What the sandbox is made of: native, landlock or srt.")
    ] = None,
    preload: Annotated[
        list[str] | None, typer.Option(metavar="MODULE", help="A module to import when kernels start. Can be repeated.")
    ] = None,
    transport: Annotated[_Transport, typer.Option(help="stdio for one client, http for many.")] = _Transport.STDIO,
    host: Annotated[str, typer.Option(help="The address to listen on.", rich_help_panel=_HTTP)] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.", rich_help_panel=_HTTP)] = 8900,
    token: Annotated[
        str,
        typer.Option(
            envvar="CELLBLOCK_MCP_TOKEN",
            help="The token for clients; a random one by default.",
            rich_help_panel=_HTTP,
        ),
    ] = "",
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Ask for no token. Loopback addresses only.", rich_help_panel=_HTTP)
    ] = False,
    allow_name: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="A host name for clients. Can be repeated.", rich_help_panel=_HTTP),
    ] = None,
    log_level: Annotated[_Level, typer.Option(help="What is logged to standard error.")] = _Level.WARNING,
    tool_server_host: Annotated[str | None, typer.Option(hidden=True)] = None,
    tool_server_port: Annotated[str | None, typer.Option(hidden=True)] = None,
    kernel_gateway_host: Annotated[str | None, typer.Option(hidden=True)] = None,
    kernel_gateway_port: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> int:
    """Serve Python sessions to agents over the Model Context Protocol (MCP)."""
    from cellblock.cli.serve_mcp import run
    from cellblock.errors import InvalidInputError

    _explain_ipybox(tool_server_host, tool_server_port, kernel_gateway_host, kernel_gateway_port)
    if sandbox and no_sandbox:
        raise InvalidInputError("give --sandbox or --no-sandbox, not both; there is a sandbox by default")
    return run(
        workspace=workspace,
        no_sandbox=no_sandbox,
        sandbox_config=sandbox_config,
        isolate=isolate,
        allow_hosts=allow_host,
        approve=approve.value,
        rules=rules,
        approve_shell_cmds=approve_shell_cmds,
        preload=preload,
        transport=transport.value,
        host=host,
        port=port,
        auth=not no_auth,
        token=token,
        names=allow_name,
        log_level=log_level.value,
    )


def _explain_ipybox(*given: str | None) -> None:
    """Say which options of ipybox have nothing to do here: there are no such servers."""
    from cellblock.cli.problems import say

    for option, value in zip(_IPYBOX, given, strict=True):
        if value is not None:
            say(f"cellblock: {option} has no effect: sessions listen nowhere on this machine")
