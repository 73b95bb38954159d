"""Runs a gateway: `cellblock serve`."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
import ssl
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellblock.common import telemetry
from cellblock.common.addresses import bracketed, listen
from cellblock.common.extras import require_extra
from cellblock.errors import InvalidInputError
from cellblock.fronts.gateway.gateway_options import GatewayOptions
from cellblock.service import settings
from cellblock.service.daemon.place import Place
from cellblock.service.daemon.starting import connect_or_start
from cellblock.service.store.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import uvicorn
    from starlette.types import ASGIApp

GREETING = "cellblock listens at {} (API: {}/docs)"
_CONSOLE = "The console: {}/console ('cellblock console --url {}' logs in)"


def serve(
    host: str = "127.0.0.1",
    port: int = 8080,
    *more_ports: int,
    options: GatewayOptions | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    say: Callable[[str], object] | None = None,
    make: Callable[[GatewayOptions, Place], ASGIApp] | None = None,
    greeting: str = GREETING,
    on_start: Callable[[str], object] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. The daemon and its sessions continue.

    Args:
        host: The address to listen on.
        port: The port; 0 for any free port.
        more_ports: Additional ports with the same service.
        options: The gateway's options.
        certificate: A file with the TLS certificate and its chain.
        key: A file with the private key, if the certificate's file does not contain it.
        say: Shows a line to the user; on standard error by default.
        make: Creates the application; by default the gateway's own.
        greeting: The message after the start, with ``{}`` for the URLs.
        on_start: Called with the URL after the start, instead of showing messages.

    Raises:
        InvalidInputError: An option is unsafe or unusable: an address reachable from other machines without tokens, the
            address itself, the certificate, or a key that sessions could read.
        DaemonError: No daemon runs, and none can be started.
        UnsupportedError: The extra serve is not installed.
    """
    require_extra("serve", "HTTP servers")
    from cellblock.fronts.gateway.app import make_app

    options = options or GatewayOptions()
    check_address(host, auth=options.auth)
    check_certificate(certificate, key)
    tell = say or _say
    if (secret := key or certificate) is not None:
        check_key(secret, options)
        if os.stat(secret).st_mode & 0o044:
            tell(f"Other users can read the private key {secret}: chmod 600 it")
    place = _prepared(options)
    once = options.auth and not options.token and on_start is None and not Tokens(place.directory).all()
    if once:
        options = replace(options, token=secrets.token_urlsafe(32))
    socks = listen_at(host, (port, *more_ports))
    scheme = "https" if certificate else "http"
    addresses = [f"{scheme}://{bracketed(host)}:{sock.getsockname()[1]}" for sock in socks]
    socks += listen_at("127.0.0.1", options.publish, "the server for --publish")

    def greet() -> None:
        if on_start is not None:
            on_start(addresses[0])
            return
        for line in _greeting(greeting, addresses, options, once=once):
            tell(line)

    _run(config((make or make_app)(options, place), certificate, key), socks, greet)


def _greeting(greeting: str, addresses: list[str], options: GatewayOptions, *, once: bool) -> Iterator[str]:
    """Yield the lines that tell the user where the service is and which tokens it takes."""
    yield greeting.format(*addresses, addresses[0])
    if greeting is GREETING:
        yield _CONSOLE.format(addresses[0], addresses[0])
    yield _about_tokens(options, once=once)
    for published in options.publish:
        yield f"Port {published} of the sandbox is at http://localhost:{published}"


def _run(configuration: uvicorn.Config, socks: list[socket.socket], greet: Callable[[], None]) -> None:
    """Run uvicorn until SIGINT or SIGTERM, and call a function when it has started."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            greet()

    with telemetry.exporting("cellblock-gateway"):
        try:
            Server(configuration).run(sockets=socks)
        except KeyboardInterrupt:
            pass  # uvicorn raises it again when it has ended


def _prepared(options: GatewayOptions) -> Place:
    """Return the daemon's location, after checking that a daemon can run: otherwise each request would report that."""
    place = Place()
    place.prepare()
    if address := settings.current().ray_address:
        check_workspaces(options, address)
    else:
        connect_or_start(place).close()
    return place


def _about_tokens(options: GatewayOptions, *, once: bool) -> str:
    if once:
        return f"There are no tokens yet. For this run: Authorization: Bearer {options.token}"
    if options.auth:
        return "Requests need a token: 'cellblock tokens create' makes one"
    return "No token is required: every program on this machine can run code here"


def check_workspaces(options: GatewayOptions, address: str) -> None:
    """Check that sessions on a cluster get their directories there.

    Raises:
        InvalidInputError: They would get directories on this machine.
    """
    if options.workspaces is not None:
        raise InvalidInputError(
            f"sessions on the Ray cluster {address} have directories on its nodes, so none can be given them in "
            f"{options.workspaces}"
        )


def check_address(host: str, *, auth: bool) -> None:
    """Check that other machines cannot reach a gateway without tokens.

    Raises:
        InvalidInputError: They could.
    """
    if not auth and not is_loopback(host):
        raise InvalidInputError(
            f"without tokens, the server can only listen on a loopback address such as 127.0.0.1, not on {host!r}"
        )


def is_loopback(host: str) -> bool:
    """Return whether an address is unreachable from other machines."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_certificate(certificate: Path | None, key: Path | None) -> None:
    """Check that a certificate, if given, can be used.

    Raises:
        InvalidInputError: It cannot.
    """
    if certificate is None:
        if key is not None:
            raise InvalidInputError("a private key needs its certificate: --certificate FILE")
        return
    try:
        encryption(certificate, key)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        files = f"{certificate} and {key}" if key is not None else f"{certificate}"
        why = error.strerror if type(error) is not ssl.SSLError and isinstance(error, OSError) else "no pair in PEM format"
        raise InvalidInputError(f"the TLS certificate and its key cannot be read from {files}: {why}") from error


def check_key(key: Path, options: GatewayOptions) -> None:
    """Check that the private key is outside the sessions' directories, where they could read it.

    Raises:
        InvalidInputError: It is inside.
    """
    given = options.session_options.get("working_dir")
    places = [given if isinstance(given, str) else os.getcwd()] if options.workspaces is None else [options.workspaces]
    for place in map(os.path.realpath, places):
        if Path(os.path.realpath(key)).is_relative_to(place):
            raise InvalidInputError(
                f"the private key {key} is in {place}, where sessions work and could read it: "
                "move it, or start the gateway in another directory"
            )


def encryption(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """Create the TLS context.

    Raises:
        OSError, ValueError: The certificate or its key cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


def config(app: Any, certificate: Path | None, key: Path | None) -> Any:
    """Return uvicorn's configuration."""
    import uvicorn

    from cellblock.fronts.gateway.protocol import BoundedHttp, BoundedWebSocket

    class Http(BoundedHttp):
        tls = None if certificate is None else encryption(certificate, key)

    return uvicorn.Config(
        app,
        http=Http,
        ws=BoundedWebSocket,
        log_level="warning",
        access_log=False,  # it would log tokens in the URLs of WebSockets
        proxy_headers=False,
        server_header=False,
        ws_max_size=16 * 1024 * 1024,
        ws_per_message_deflate=False,  # costs small messages more than it saves
        timeout_graceful_shutdown=5,
    )


def listen_at(host: str, ports: Sequence[int], what: str = "the gateway") -> list[socket.socket]:
    """Listen on all given ports, or on none.

    Raises:
        InvalidInputError: A port cannot be used.
    """
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(listen(host, port, what)) for port in ports]
        stack.pop_all()
        return socks


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
