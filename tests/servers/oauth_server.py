"""An MCP server behind OAuth, with its authorization server, in one process. Prints its port.

``POST /control`` sets what it does wrong, and returns what it counted. Refresh tokens can be redeemed once: a second time
revokes all tokens, as real servers do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import time
import warnings
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import uvicorn
from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken, AuthorizationCode, AuthorizationParams, RefreshToken
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

warnings.simplefilter("ignore")
LISTENER = socket.create_server(("127.0.0.1", 0))
PORT = LISTENER.getsockname()[1]
URL = f"http://127.0.0.1:{PORT}"
control: dict[str, Any] = {"life": 3600}
counts = {"refreshed": 0, "reused": 0, "registered": 0}


class Memory:
    """The authorization server's memory."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.access: dict[str, AccessToken] = {}
        self.redeemed: set[str] = set()

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        counts["registered"] += 1
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        if control.get("refuse"):
            return f"{params.redirect_uri}?{urlencode({'error': 'access_denied', 'state': params.state})}"
        code = AuthorizationCode(
            code=secrets.token_hex(20),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=True,
            resource=params.resource,
        )
        self.codes[code.code] = code
        given = {"code": code.code, "state": control.get("state", params.state), "iss": control.get("iss", f"{URL}/")}
        return f"{params.redirect_uri}?{urlencode(given)}"

    async def load_authorization_code(self, client: OAuthClientInformationFull, authorization_code: str) -> Any:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client: OAuthClientInformationFull, code: AuthorizationCode) -> OAuthToken:
        del self.codes[code.code]
        return self._issue(client.client_id, code.scopes)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        if refresh_token in self.redeemed:
            counts["reused"] += 1
            self.refresh.clear()
            self.access.clear()
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        counts["refreshed"] += 1
        self.redeemed.add(refresh_token.token)
        del self.refresh[refresh_token.token]
        self.access.clear()
        return self._issue(client.client_id, scopes)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: object) -> None: ...

    def _issue(self, client: str, scopes: list[str]) -> OAuthToken:
        access, refresh = f"access-{secrets.token_hex(8)}", f"refresh-{secrets.token_hex(8)}"
        life = control["life"]
        self.access[access] = AccessToken(token=access, client_id=client, scopes=scopes, expires_at=int(time.time() + life))
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client, scopes=scopes)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=life, scope=" ".join(scopes))


memory = Memory()


class Guarded:
    """The MCP server, for those with a token."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            if scope["path"] == "/token":
                await asyncio.sleep(control.get("delay", 0))
            if control.get("token") and scope["path"] == "/token":
                await Response(status_code=control["token"])(scope, receive, send)
                return
            if scope["path"].startswith(("/mcp", "/sse", "/messages")):
                said = dict(scope["headers"]).get(b"authorization", b"").decode()
                token = memory.access.get(said.removeprefix("Bearer "))
                if token is None or (token.expires_at or 0) < time.time():
                    where = control.get("metadata", f"{URL}/.well-known/oauth-protected-resource/mcp")
                    header = f'Bearer error="invalid_token", scope="read", resource_metadata="{where}"'
                    await self._refuse(401, header, scope, receive, send)
                    return
                if (wanted := control.get("scope", "read")) not in token.scopes:
                    header = f'Bearer error="insufficient_scope", scope="{wanted}"'
                    await self._refuse(403, header, scope, receive, send)
                    return
        await self._app(scope, receive, send)

    async def _refuse(self, status: int, header: str, *call: Any) -> None:
        await Response(status_code=status, headers={"WWW-Authenticate": header})(*call)


async def resource(request: Request) -> Response:
    said = {"resource": control.get("resource", f"{URL}/mcp"), "authorization_servers": [control.get("issuer", f"{URL}/")]}
    return JSONResponse(said)


async def steer(request: Request) -> Response:
    if given := json.loads(await request.body() or b"{}"):
        control.clear()
        control.update({"life": 3600} | given)
    if control.pop("drop", None):
        memory.access.clear()
    if control.pop("forget", None):
        memory.refresh.clear()
        memory.access.clear()
    return JSONResponse(counts)


def main() -> None:
    server: MCPServer[Any] = MCPServer("guarded")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    app = server.streamable_http_app()
    options = ClientRegistrationOptions(enabled=True, valid_scopes=["read", "write"])

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with server.session_manager.run():
            yield

    provider: Any = memory
    routes = [
        Route("/control", steer, methods=["POST"]),
        Route("/.well-known/oauth-protected-resource/mcp", resource),
        *create_auth_routes(provider, AnyHttpUrl(f"{URL}/"), client_registration_options=options),
        *app.routes,
        *server.sse_app().routes,
    ]
    print(PORT, flush=True)
    guarded: Any = Guarded(Starlette(routes=routes, lifespan=lifespan))
    uvicorn.Server(uvicorn.Config(guarded, log_level="error", timeout_graceful_shutdown=1)).run(sockets=[LISTENER])


main()
