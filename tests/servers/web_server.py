"""An MCP server over HTTP and server-sent events, by the SDK, with pages beside it that are none. Prints its port.

Usage: web_server.py TOKEN FILE [PORT]. An empty token: everybody may. Cancelled calls are noted in FILE.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import socket
import sys
import warnings
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context, Image
from pydantic import AnyHttpUrl, BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route

TOKEN, FILE = sys.argv[1:3]
warnings.simplefilter("ignore")


class OneToken:
    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id="test", scopes=[]) if token == TOKEN else None


class Sum(BaseModel):
    total: int


def make() -> MCPServer[Any]:
    options: dict[str, Any] = {}
    if TOKEN:
        url = AnyHttpUrl("http://127.0.0.1/")
        options = {"token_verifier": OneToken(), "auth": AuthSettings(issuer_url=url, resource_server_url=None)}
    server: MCPServer[Any] = MCPServer("web", **options)

    @server.tool()
    def add(a: int, b: int) -> Sum:
        """Add two numbers."""
        return Sum(total=a + b)

    @server.tool()
    def wrong() -> Sum:
        """Return a number, and say that it is a text."""
        return Sum(total=1)

    said = server._tool_manager._tools["wrong"].fn_metadata.output_schema
    assert said is not None
    said["properties"]["total"] = {"type": "string"}

    @server.tool()
    def picture() -> Image:
        return Image(data=b"\x89PNG", format="png")

    @server.tool(structured_output=False)
    def big(size: int) -> str:
        return "x" * size

    @server.tool(structured_output=False)
    async def steps(context: Context[Any, Any]) -> str:
        for done in range(3):
            await context.report_progress(done, 3, f"step {done}")
            await context.info(f"step {done}")
        return "done"

    @server.tool(structured_output=False)
    async def wait() -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            with open(FILE, "a") as file:
                file.write("cancelled\n")
            raise
        return "waited"

    @server.tool(structured_output=False)
    def die() -> str:
        os._exit(7)

    return server


async def html(request: Request) -> Response:
    return HTMLResponse("<h1>It works!</h1>")


async def bomb(request: Request) -> Response:
    body = gzip.compress(b'{"a": "' + b"x" * 50_000_000 + b'"}')
    return Response(body, media_type="application/json", headers={"Content-Encoding": "gzip"})


async def flood(request: Request) -> Response:
    return Response(b'{"a": "' + b"x" * 50_000_000 + b'"}', media_type="application/json")


def main() -> None:
    plain, modern, old = make(), make(), make()
    http, jsons = modern.streamable_http_app(), plain.streamable_http_app(streamable_http_path="/json/mcp", json_response=True)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with modern.session_manager.run(), plain.session_manager.run():
            yield

    pages = [Route(f"/{page.__name__}", page, methods=["GET", "POST"]) for page in (html, bomb, flood)]
    app = Starlette(routes=[*pages, *http.routes, *jsons.routes, Mount("/", old.sse_app())], lifespan=lifespan)
    app.user_middleware = http.user_middleware
    listener = socket.create_server(("127.0.0.1", int(sys.argv[3]) if len(sys.argv) > 3 else 0))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)).run(sockets=[listener])


main()
