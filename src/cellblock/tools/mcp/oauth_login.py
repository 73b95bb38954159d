"""Logs a person in at an MCP server with OAuth, in a browser. Only the command line does this."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from mcp.shared.auth_utils import calculate_token_expiry
from pydantic import AnyUrl

from cellblock.common.terminal import printable
from cellblock.errors import InvalidInputError, McpServerError, StoreError
from cellblock.tools.mcp.logins import Login, LoginStore, challenge_of, scopes_in
from cellblock.tools.mcp.named_urls import NamedUrls
from cellblock.tools.mcp.params import OAuth, RemoteServer
from cellblock.tools.mcp.words import cut

SECONDS_TO_ANSWER = 300.0
_SECONDS_TO_SEND = 10.0
_MAX_REQUEST = 32 * 1024
_PING = {"jsonrpc": "2.0", "id": "cellblock-login", "method": "ping"}
_ANSWER = "HTTP/1.1 {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}"

Ask = Callable[[str, socket.socket, Callable[[str], bool]], Awaitable[str]]
"""Sends a person to a URL; returns the URL that the browser was sent back to. Gets a listener at the address of this URL, and
a function that returns whether a URL is the answer."""

logging.getLogger("mcp").addHandler(logging.NullHandler())  # errors report what the SDK logs


async def log_in(server: str, params: RemoteServer, ask: Ask) -> Login:
    """Log a person in, and store the login.

    Args:
        server: The server's name.
        params: Its parameters, resolved, with ``auth``.
        ask: Sends the person to the authorization server.

    Raises:
        McpServerError: The login failed.
        InvalidInputError: The port for the answer is in use.
        StoreError: The login cannot be stored.
    """
    store = LoginStore(server, params)
    before = None
    with suppress(StoreError):  # a damaged login is replaced
        before = await asyncio.to_thread(store.read)
    assert params.auth is not None
    try:
        listener = socket.create_server(("127.0.0.1", params.auth.callback_port or 0))
    except OSError as error:
        raise InvalidInputError(f"the login cannot use callback_port {params.auth.callback_port}: {error.strerror}") from error
    with listener:
        provider = _Provider(params, params.auth, ask, listener)
        try:
            login = replace(await provider.run(before), server=server)
        except (OAuthFlowError, httpx2.HTTPError, ValueError, OverflowError) as error:
            hint = ""
            if isinstance(error, OAuthRegistrationError):
                hint = "; register a client there by hand, and give its client_id in auth (docs/tools.md)"
            said = printable(cut(str(error)), lines=False)
            raise McpServerError(f"the login at {server!r} failed: {said}{hint}", server=server) from error
    async with store.locked():
        await asyncio.to_thread(store.write, login)
    return login


async def by_browser(url: str, listener: socket.socket, is_answer: Callable[[str], bool], show: Callable[[str], Any]) -> str:
    """Show a URL, and wait until the browser requests the answer's URL. Everything else gets an error.

    Raises:
        OAuthFlowError: There is no answer in time.
    """
    address, port = listener.getsockname()
    answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(_SECONDS_TO_SEND):
                    head = await reader.readuntil(b"\r\n\r\n")
                    method, target, _ = head.partition(b"\r\n")[0].decode("ascii").split(" ")
                    found = f"http://{address}:{port}{target}"
                    good = method == "GET" and not answered.done() and is_answer(found)
                    if good:
                        answered.set_result(found)
                    said = "Continue in the terminal. You can close this page." if good else "Not the answer."
                    writer.write(_ANSWER.format("200 OK" if good else "404 Not Found", len(said), said).encode())
                    await writer.drain()
        finally:
            writer.close()

    async with await asyncio.start_server(serve, sock=listener, limit=_MAX_REQUEST):
        show(url)
        try:
            async with asyncio.timeout(SECONDS_TO_ANSWER):
                return await answered
        except TimeoutError as error:
            raise OAuthFlowError(f"the browser did not return within {SECONDS_TO_ANSWER / 60:g} minutes") from error


class _Provider(OAuthClientProvider):
    """The SDK's flow, with requests by `NamedUrls` and the answer of a person."""

    def __init__(self, params: RemoteServer, auth: OAuth, ask: Ask, listener: socket.socket) -> None:
        # A client that was registered by hand has a fixed path. Otherwise, no other login has the same.
        path = "/callback" if auth.client_id else f"/callback/{secrets.token_urlsafe(9)}"
        self._redirect = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
        public: Any = {"redirect_uris": [AnyUrl(self._redirect)], "token_endpoint_auth_method": "none"}
        metadata = OAuthClientMetadata(**public, client_name="cellblock")
        storage: Any = self  # which stores nothing before the end
        super().__init__(params.url, metadata, storage, self._show, self._answer)
        self._initialized = True
        if auth.client_id is not None:
            client = OAuthClientInformationFull(**public, client_id=auth.client_id, client_secret=auth.client_secret)
            self.context.client_info = client
        self._params, self._auth = params, auth
        self._urls = NamedUrls(params.url)
        self._ask, self._listener = ask, listener
        self._url = ""

    async def run(self, before: Login | None) -> Login:
        """Run the flow; return the login, without the server's name.

        Args:
            before: The login until now: its scopes are asked for again if the server misses some.
        """
        sse = self._params.transport == "sse"
        headers = {**self._params.headers, "Accept": f"{'' if sse else 'application/json, '}text/event-stream"}
        first = httpx2.Request("GET" if sse else "POST", self._params.url, headers=headers, json=None if sse else _PING)
        flow = self.async_auth_flow(first)
        try:
            request = await anext(flow)
            response = _challenge(await self._urls.send(request), self._auth.scopes, before)
            while (request := await flow.asend(response)) is not first:
                response = await self._urls.send(request)
        finally:
            await flow.aclose()
        context, token = self.context, self.context.current_tokens
        if token is None or context.client_info is None:
            raise OAuthFlowError("it issued no token")
        origin = context.get_authorization_base_url(context.server_url)

        def data(model: Any) -> Any:
            return None if model is None else model.model_dump(mode="json", exclude_none=True)

        return Login(
            server="",
            url=context.server_url,
            issuer=origin if context.oauth_metadata is None else str(context.oauth_metadata.issuer),
            client=data(context.client_info),
            token=data(token),
            metadata=data(context.oauth_metadata),
            resource=data(context.protected_resource_metadata),
            expires=calculate_token_expiry(token.expires_in),
        )

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store nothing yet."""

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store nothing yet."""

    async def _perform_authorization(self) -> httpx2.Request:
        client, metadata = self.context.client_info, self.context.oauth_metadata
        if self._auth.client_secret is not None and client is not None:
            methods = metadata and metadata.token_endpoint_auth_methods_supported
            post = methods and "client_secret_basic" not in methods
            client.token_endpoint_auth_method = "client_secret_post" if post else "client_secret_basic"
        return await super()._perform_authorization()

    async def _show(self, url: str) -> None:
        self._urls.check(url)  # a browser opens more than https
        self._url = url

    async def _answer(self) -> AuthorizationCodeResult:
        state = parse_qs(urlsplit(self._url).query)["state"][0]

        def is_answer(url: str) -> bool:
            """Return whether a URL is the redirect of this login: others do not know its state."""
            given = parse_qs(urlsplit(url).query).get("state", [""])[0]
            return url.partition("?")[0] == self._redirect and secrets.compare_digest(given.encode(), state.encode())

        answer = await self._ask(self._url, self._listener, is_answer)
        if not is_answer(answer):
            raise OAuthFlowError("this address is not the answer to this login: begin again, and paste all of it")
        given = {name: values[0] for name, values in parse_qs(urlsplit(answer).query).items()}
        if "error" in given:
            raise OAuthFlowError(f"it was refused: {given['error']}; {given.get('error_description', '')}".rstrip("; "))
        return AuthorizationCodeResult(code=given.get("code", ""), state=given["state"], iss=given.get("iss"))


def _challenge(response: httpx2.Response, scopes: tuple[str, ...], before: Login | None) -> httpx2.Response:
    """Return the refusal that starts the SDK's flow: some servers let everybody in, and refuse only calls.

    Raises:
        OAuthFlowError: The server has a fault.
    """
    if response.status_code >= 500:
        raise OAuthFlowError(f"the server answered HTTP {response.status_code}")
    said = challenge_of(response.headers.get("WWW-Authenticate", "")) if response.status_code == 401 else {}
    wanted = [*scopes] or scopes_in(said.get("scope", ""))
    if not scopes and before is not None and before.missing:
        wanted = [*dict.fromkeys((*wanted, *before.scopes, *before.missing))]
    parameters = {"scope": " ".join(wanted), "resource_metadata": said.get("resource_metadata", "")}
    header = "Bearer " + ", ".join(f'{name}="{value}"' for name, value in parameters.items() if value)
    return httpx2.Response(401, headers={"WWW-Authenticate": header}, request=response.request)
