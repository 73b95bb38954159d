"""Starts the MCP server, and ends it with all of its sessions."""

from __future__ import annotations

import asyncio
import hmac
import sys
from typing import TYPE_CHECKING

from cellblock.mcp_server.clients import Clients
from cellblock.mcp_server.options import ServerOptions, enter

if TYPE_CHECKING:
    from mcp.server import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send


async def serve(options: ServerOptions) -> None:
    """Serve until the client leaves (stdio), or until this is cancelled (HTTP).

    Raises:
        CellblockError: It cannot be started.
    """
    enter(options)
    clients = Clients(options)
    try:
        clients.begin()  # a process of its own warms up while the SDK is imported here, which takes as long
        from cellblock.mcp_server.server import build

        server = build(clients)
        if options.transport == "stdio":
            await server.run_stdio_async()
        else:
            await _serve_http(server, options)
    finally:
        closing = asyncio.create_task(clients.close())
        await asyncio.wait([closing])


async def _serve_http(server: MCPServer[None], options: ServerOptions) -> None:
    import uvicorn
    from mcp.server.transport_security import TransportSecuritySettings

    hosts = [options.host, f"{options.host}:*", "localhost:*", "127.0.0.1:*", "[::1]:*"]
    security = TransportSecuritySettings(
        allowed_hosts=hosts, allowed_origins=[f"http://{host}" for host in hosts] + [f"https://{host}" for host in hosts]
    )
    app: ASGIApp = server.streamable_http_app(host=options.host, transport_security=security)
    if options.token is not None:
        app = _with_token(app, options.token)
    sys.stderr.write(f"cellblock serves MCP at http://{options.host}:{options.port}/mcp\n")
    await uvicorn.Server(uvicorn.Config(app, host=options.host, port=options.port, log_level="warning")).serve()


def _with_token(app: ASGIApp, token: str) -> ASGIApp:
    """Return an application that only clients with the token can use."""
    expected = f"Bearer {token}".encode()

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if not hmac.compare_digest(given, expected):
                head = [(b"www-authenticate", b"Bearer"), (b"content-type", b"text/plain")]
                await send({"type": "http.response.start", "status": 401, "headers": head})
                await send({"type": "http.response.body", "body": b"a bearer token is needed: see cellblock mcp --help"})
                return
        await app(scope, receive, send)

    return guarded
