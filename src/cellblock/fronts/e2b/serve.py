"""Runs a server for E2B's clients: `cellblock serve --e2b`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cellblock.common.extras import require_extra
from cellblock.errors import InvalidInputError
from cellblock.fronts.gateway.gateway_options import GatewayOptions
from cellblock.fronts.gateway.serve import is_loopback
from cellblock.fronts.gateway.serve import serve as serve_gateway
from cellblock.fronts.where import open_link
from cellblock.host.checks import check_maker_directory
from cellblock.service import settings
from cellblock.service.session.policy import requested_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from starlette.types import ASGIApp

    from cellblock.fronts.e2b.contexts import Workspace
    from cellblock.service.daemon.place import Place

PORTS = (49999, 49983)
"""Where E2B's clients look for the code interpreter, and for envd, which has files and programs."""

HOME = "/home/user"
"""The home directory of E2B's sandboxes, where code begins to work, and has its files."""

TEXT_LIMIT = 8 * 1024 * 1024
"""Bytes of the text that one cell prints."""


def serve(
    host: str = "127.0.0.1",
    *ports: int,
    options: GatewayOptions | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    say: Callable[[str], object] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. The daemon and its sessions continue.

    On a loopback address, no tokens are required, because E2B's clients send none.

    Args:
        host: The address to listen on.
        ports: The ports, each with the complete service; by default E2B's ports.
        options: Access limits, and the options of the sessions.
        certificate: As for the gateway.
        key: As for the gateway.
        say: As for the gateway.

    Raises:
        InvalidInputError: Ports cannot be shown as the options say.
        CellblockError: As for the gateway.
    """
    require_extra("serve", "HTTP servers")
    from cellblock.fronts.e2b.app import make_app

    options = options or GatewayOptions()
    if options.ports_domain:
        raise InvalidInputError(
            "ports_domain (--ports-domain) is for the gateway: with --e2b, name the ports to show at localhost "
            "(--publish PORT)"
        )
    options = replace(options, auth=options.auth and not is_loopback(host))
    workspace = workspace_for(settings.current().session_options(options.session_options))
    if options.publish:
        check_publishing(host, workspace, certificate)

    def make(options: GatewayOptions, place: Place) -> ASGIApp:
        return make_app(options, open_link(place), place, workspace)

    serve_gateway(
        host,
        *(ports or PORTS),
        options=options,
        certificate=certificate,
        key=key,
        say=say,
        make=make,
        greeting="cellblock listens at {} for programs that use E2B: they need E2B_DEBUG=true",
    )


def check_publishing(host: str, workspace: Workspace, certificate: Path | None) -> None:
    """Check that servers of the sandbox can be shown at ports of this machine.

    Raises:
        InvalidInputError: They cannot.
    """
    options = workspace.options
    if requested_tier(options.get("sandbox", True), options.get("isolate"), None).name != "native":
        raise InvalidInputError("publish (--publish) needs isolate='native': elsewhere, servers have the machine's own ports")
    if not is_loopback(host) or certificate is not None:
        raise InvalidInputError(
            "publish (--publish) is for programs on this machine, where the SDKs expect HTTP at localhost: leave out --host "
            "and --certificate"
        )


def workspace_for(given: Mapping[str, Any]) -> Workspace:
    """Return the workspace of the sessions, with all of their options.

    Args:
        given: The options chosen by the user.

    Raises:
        InvalidInputError: The server was started in the home directory, and no other directory is named.
    """
    from cellblock.fronts.e2b.contexts import Workspace

    options = {"current_dir": os.getcwd(), "python": sys.executable, "limits": {"text": TEXT_LIMIT}, **given}
    path = os.path.realpath(options.get("working_dir") or options["current_dir"])
    tier = requested_tier(options.get("sandbox", True), options.get("isolate"), None)
    if options.get("working_dir") is None:
        check_maker_directory(path, tier)  # now rather than with the first program
    # A sandbox configuration can expose all of the machine's files, home directories included.
    named = tier.name == "native" and options.get("sandbox_config") is None
    if not named or any(f"{os.path.realpath(one)}/".startswith(f"{HOME}/") for one in (path, sys.prefix, sys.base_prefix)):
        return Workspace(path, path, options)
    return Workspace(path, HOME, {**options, "home_is_workspace": True})
