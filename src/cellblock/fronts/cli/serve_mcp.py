"""Runs the MCP server for ``cellblock mcp``, and imports nothing else."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

_PATHS = ("workspace", "rules", "sandbox_config")


def run(*, log_level: str = "WARNING", **options: Any) -> int:
    """Serve until the client leaves.

    Args:
        log_level: The level of the log on standard error.
        options: The `ServerOptions` that were given, including `SandboxOptions`.
    """
    gc.disable()  # until everything is loaded (`mcp_server.start`): nearly all of it stays
    try:
        _serve(log_level, options)
    finally:
        gc.enable()
    return 0


def _serve(log_level: str, options: dict[str, Any]) -> None:
    from cellblock.common.extras import require_extra

    require_extra("mcp", "MCP servers")  # before modules that import what it brings
    import logging
    import sys

    from cellblock.common.sandbox_options import NAMES, SandboxOptions
    from cellblock.fronts.mcp_server.server_options import ServerOptions
    from cellblock.fronts.mcp_server.start import run as serve
    from cellblock.service import settings

    logging.basicConfig(level=log_level, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    sandbox = SandboxOptions(**{name: options.pop(name) for name in NAMES if options.get(name) is not None})
    given: dict[str, Any] = {
        name: Path(value).absolute() if name in _PATHS else value
        for name, value in options.items()
        if value is not None and name not in NAMES
    }
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    cluster = bool(settings.current().ray_address)
    serve(ServerOptions(sandbox_options=sandbox, cluster=cluster, **given))
