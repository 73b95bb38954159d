"""``cellblock mcp``: the MCP server."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from cellblock.fronts.cli.arguments import known_names, takes
from cellblock.fronts.mcp_server.server_options import ServerOptions

_IPYBOX = "--tool-server-host", "--tool-server-port", "--kernel-gateway-host", "--kernel-gateway-port"


class _Level(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"


_Unused = Annotated[str | None, typer.Option(hidden=True)]
_LogLevel = Annotated[_Level, typer.Option(help="What is logged to standard error.")]


@takes(ServerOptions, completions={"session_name": known_names})
def mcp(
    *,
    options: dict[str, Any],
    with_sandbox: Annotated[bool, typer.Option("--sandbox", hidden=True)] = False,  # for ipybox: the default here
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
    if with_sandbox and not options.get("sandbox", True):
        raise InvalidInputError("give --sandbox or --no-sandbox, not both; there is a sandbox by default")
    return run(log_level=log_level.value, **options)


def _explain_ipybox(*given: str | None) -> None:
    """Warn about ipybox's options for servers that do not exist here."""
    from cellblock.fronts.cli.problems import say

    for option, value in zip(_IPYBOX, given, strict=True):
        if value is not None:
            say(f"cellblock: {option} has no effect: sessions do not listen on any port of this machine")
