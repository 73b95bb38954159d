"""Starts and stops the MCP server with all of its sessions."""

from __future__ import annotations

import asyncio
import gc
import hmac
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from cellblock.common import telemetry
from cellblock.common.addresses import bracketed, listen
from cellblock.fronts.mcp_server.clients import Clients
from cellblock.fronts.mcp_server.server_options import ServerOptions, enter

if TYPE_CHECKING:
    from mcp.server import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

_MAX_ENDING = 2
"""Grace period of HTTP requests when the server stops, in seconds."""


def run(options: ServerOptions) -> None:
    """Serve until the client leaves (stdio), or until SIGINT, SIGTERM or SIGHUP.

    Raises:
        CellblockError: The server cannot be started.
    """
    with telemetry.exporting("cellblock-mcp"), suppress(asyncio.CancelledError):
        asyncio.run(_serve(options))


async def _serve(options: ServerOptions) -> None:
    enter(options)
    ended: list[int] = []
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end(number: int) -> None:
        ended.append(number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    clients = Clients(options)
    try:
        await clients.begin()  # the fork server warms up while the SDK is imported, which takes as long
        from cellblock.fronts.mcp_server.server import build

        server = build(clients)
        gc.freeze()
        gc.enable()
        await (_serve_http(server, options, stop) if options.transport == "http" else _serve_stdio(server, stop))
    finally:
        closing = asyncio.create_task(clients.close())
        await asyncio.wait([closing])
        if ended and options.transport == "stdio":
            # A thread of the SDK waits for a line from the client, and Python would wait for the thread.
            sys.stderr.flush()
            telemetry.send_the_rest()
            os._exit(128 + ended[0])


async def _serve_stdio(server: MCPServer[None], stop: asyncio.Event) -> None:
    if sys.stdin.isatty():  # a person tries the command that a client would start
        sys.stderr.write("cellblock waits for an MCP client on standard input. Ctrl-C ends it.\n")
        sys.stderr.flush()
    serving = asyncio.create_task(server.run_stdio_async())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        stopping.cancel()
        serving.result()


async def _serve_http(server: MCPServer[None], options: ServerOptions, stop: asyncio.Event) -> None:
    import uvicorn

    class Uvicorn(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # handled above, where sessions are ended, too

    listener = listen(options.host, options.port, "the MCP server")
    address = f"{bracketed(options.host)}:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        _app(server, options),
        http="h11",  # httptools keeps the space after a header's value, which RFC 9110 excludes
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_MAX_ENDING,
    )
    http = Uvicorn(config)
    sys.stderr.write(f"cellblock serves MCP at http://{address}/mcp\n")
    if options.auth:
        sys.stderr.write(f"Clients need the header  Authorization: Bearer {options.token}\n")
    sys.stderr.flush()
    serving = asyncio.create_task(http.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    http.should_exit = True
    await serving
    stopping.cancel()


def _app(server: MCPServer[None], options: ServerOptions) -> ASGIApp:
    """Return the application, which refuses clients without a required token, and web pages of other origins."""
    from mcp.server.transport_security import TransportSecuritySettings

    from cellblock.fronts.mcp_server.client_input import with_repaired_bodies

    names = [bracketed(name) for name in (options.host, "localhost", "127.0.0.1", "::1", *options.names)]
    hosts = [pattern for name in names for pattern in (name, f"{name}:*")]
    origins = [f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts]
    security = TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)
    app = with_repaired_bodies(server.streamable_http_app(host=options.host, transport_security=security))
    return _with_token(app, options.token) if options.auth else app


def _with_token(app: ASGIApp, token: str) -> ASGIApp:
    """Return an application that refuses clients without the token."""
    expected = f"Bearer {token}".encode()

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and not _has_token(scope, expected):
            head = [(b"www-authenticate", b"Bearer"), (b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 401, "headers": head})
            await send({"type": "http.response.body", "body": b"a bearer token is needed: see cellblock mcp --help"})
            return
        await app(scope, receive, send)

    return guarded


def _has_token(scope: Scope, expected: bytes) -> bool:
    given = next((value for name, value in scope.get("headers", ()) if name == b"authorization"), b"")
    return hmac.compare_digest(given, expected)
