"""Bearer tokens of stored logins for requests to MCP servers. Tokens are renewed here; nothing here opens a browser.

The SDK's provider forgets after a restart when a token expires and where it is renewed, and locks nothing between processes:
most authorization servers issue a new refresh token at each renewal, and redeeming the old one again ends the login.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mcp.shared.auth_utils import calculate_token_expiry
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from pydantic import AnyUrl

from cellblock.errors import StoreError
from cellblock.tools.mcp.logins import Login, LoginStore, challenge_of, needs_login, scopes_in
from cellblock.tools.mcp.named_urls import LoginError, NamedUrls, origin_of
from cellblock.tools.mcp.params import RemoteServer

_AHEAD = 60.0
"""Seconds before its expiry that a token is renewed, or half of the life of a shorter one."""
_SECONDS_TO_FINISH = 10.0
_OVER = ("invalid_grant", "invalid_client", "unauthorized_client")
"""Errors after which a refresh token is worthless (RFC 6749 section 5.2)."""


class StoredLogin(OAuthClientProvider):
    """The stored login at one server.

    Args:
        server: The server's name.
        params: Its parameters, resolved.
        urls: The client for the authorization server.
    """

    def __init__(self, server: str, params: RemoteServer, urls: NamedUrls) -> None:
        # Only a login would use the redirect. This object is also the SDK's storage, by `set_tokens`.
        metadata = OAuthClientMetadata(redirect_uris=[AnyUrl("http://127.0.0.1/callback")])
        storage: Any = self
        super().__init__(params.url, metadata, storage)
        self._server = server
        self._store = LoginStore(server, params)
        self._origin = origin_of(params.url)
        self._urls = urls
        self._version: int | None = None
        self._renewing: asyncio.Task[str | None] | None = None
        self._login: Login | None = None

    def secrets(self) -> list[str]:
        """Return the tokens, which no message may show."""
        token = {} if self._login is None else self._login.token
        return [token[name] for name in ("access_token", "refresh_token") if token.get(name)]

    async def authorize(self, request: httpx2.Request, refused: str | None = None) -> str | None:
        """Add a token to a request to the server.

        Args:
            request: The request.
            refused: The token that the server refused.

        Returns:
            The token; None if only the refused one exists.

        Raises:
            LoginError: There is no token, or it could not be renewed.
        """
        if origin_of(str(request.url)) != self._origin:
            return None
        try:
            token = await self._token(request, refused)
        except StoreError as error:
            raise LoginError(str(error)) from error
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        elif refused is None:
            raise LoginError(needs_login(self._server))
        return token

    async def want(self, header: str) -> None:
        """Store the scopes that a request lacked, by its header ``WWW-Authenticate``: the next login asks for them."""
        challenge = challenge_of(header)
        if challenge.get("error") == "insufficient_scope":
            with suppress(StoreError):  # then, the message is all that is left
                async with self._store.locked():
                    if (login := await asyncio.to_thread(self._store.read)) is not None:
                        missing = scopes_in(" ".join(dict.fromkeys((*login.missing, *challenge.get("scope", "").split()))))
                        await asyncio.to_thread(self._store.write, replace(login, missing=tuple(missing)))

    async def finish(self) -> None:
        """Wait for a renewal: a token that was issued and not stored ends the login."""
        if self._renewing is not None:
            await asyncio.wait([self._renewing], timeout=_SECONDS_TO_FINISH)

    async def _token(self, request: httpx2.Request, refused: str | None) -> str | None:
        if self._version != self._store.version():
            await self._initialize()
        if (token := self._usable(refused)) is not None:
            return token
        if self._renewing is None or self._renewing.done():
            self.context.protocol_version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
            self._renewing = asyncio.create_task(self._renew(refused), name=f"login at {self._server}")
            # All requests that wait for it may be cancelled.
            self._renewing.add_done_callback(lambda task: task.cancelled() or task.exception())
        # The cancellation of one request must not lose the tokens that were issued meanwhile.
        return await asyncio.shield(self._renewing)

    def _usable(self, refused: str | None) -> str | None:
        tokens = self.context.current_tokens
        valid = tokens is not None and self.context.is_token_valid() and tokens.access_token != refused
        return tokens.access_token if valid and tokens is not None else None

    async def _renew(self, refused: str | None) -> str | None:
        """Redeem the refresh token, unless another process has done that meanwhile. Return None if that needs a login."""
        async with self._store.locked():
            await self._initialize()
            if (token := self._usable(refused)) is not None:
                return token
            trouble, over = "", True
            if self.context.can_refresh_token():
                try:
                    response = await self._urls.send(await self._refresh_token())
                    if response.status_code == 200 and await self._handle_refresh_response(response):
                        assert self.context.current_tokens is not None
                        return self.context.current_tokens.access_token
                    trouble = f"HTTP {response.status_code}"
                    over = response.status_code in (400, 401) and any(f'"{word}"' in response.text for word in _OVER)
                except (LoginError, OAuthFlowError, ValueError, OverflowError) as error:
                    trouble, over = str(error), False
                await self._initialize()
            if self._login is not None:
                if trouble and over:  # the lock is held since this token was read, so this removes no newer one
                    ended = {**self._login.token, "refresh_token": None}
                    await asyncio.to_thread(self._store.write, replace(self._login, token=ended))
                self.context.token_expiry_time = self._login.expires
            if over or (token := self._usable(refused)) is not None:  # it is about to expire
                return self._usable(refused)
            raise LoginError(f"the login at {self._server!r} could not be renewed, try again: {trouble}")

    async def _initialize(self) -> None:
        """Load the login, and what the SDK's provider would forget: expiry and metadata."""
        self._version = self._store.version()
        login = self._login = await asyncio.to_thread(self._store.read)
        context = self.context
        context.clear_tokens()
        context.client_info = None
        if login is None:
            return
        try:
            context.current_tokens = OAuthToken.model_validate(login.token)
            context.client_info = OAuthClientInformationFull.model_validate(login.client)
            if login.metadata:
                context.oauth_metadata = OAuthMetadata.model_validate(login.metadata)
            if login.resource:
                context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(login.resource)
        except ValueError as error:
            raise StoreError(f"the login at {self._server!r} is damaged; {needs_login(self._server)}") from error
        if login.expires is not None:
            life = context.current_tokens.expires_in
            context.token_expiry_time = login.expires - min(_AHEAD, _AHEAD if life is None else life / 2)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store renewed tokens."""
        assert self._login is not None
        expires = calculate_token_expiry(tokens.expires_in)
        self._login = replace(self._login, token=tokens.model_dump(mode="json", exclude_none=True), expires=expires)
        await asyncio.to_thread(self._store.write, self._login)
