"""Requests to URLs that an MCP server names, such as its authorization server. A hostile server names internal services.

Such a URL needs https and public addresses, which are checked when the connection is made. Servers on this machine may name
other servers on this machine. The origin of the server itself was named by the user.
"""

from __future__ import annotations

import asyncio
import ssl
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import httpcore2
import httpx2

from cellblock.common.terminal import printable
from cellblock.tools.mcp.paced import PacedTransport
from cellblock.tools.mcp.params import is_local
from cellblock.tools.mcp.words import cut
from cellblock.walls.egress.addresses import objection_to
from cellblock.walls.egress.gate import resolve
from cellblock.walls.egress.names import canonical_host

_MAX_BODY = 256 * 1024
_SECONDS = 20.0


class LoginError(httpx2.RequestError):
    """A token could not be had, or a request for one was refused. The message is complete."""


class NamedUrls(httpcore2.AsyncNetworkBackend):
    """A client for the URLs that one server names, and the backend of its connections.

    Args:
        url: The server's URL.
        tls: The TLS settings; by default, the system's settings.
    """

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        self._origin, self._local = origin_of(url), is_local(url)
        self._tls = tls
        self._backend = httpcore2.AnyIOBackend()

    def check(self, url: str) -> None:
        """Check a URL as far as possible without a connection.

        Raises:
            LoginError: The URL is not allowed.
        """
        try:
            if origin_of(url) == self._origin:
                return
            host = canonical_host(urlsplit(url).hostname or "")
        except (ValueError, httpx2.InvalidURL) as error:
            raise LoginError(f"{_shown(url)} is not a valid URL") from error
        if not url.startswith("https:") and not (self._local and url.startswith("http:") and is_local(url)):
            raise LoginError(f"{_shown(url)} is refused: it must start with https://")
        if not isinstance(host, str):
            self._check_address(str(host), _shown(url))

    def _check_address(self, address: str, named: str) -> None:
        found = ip_address(address.partition("%")[0])
        if not (self._local and found.is_loopback) and (objection := objection_to(found)) is not None:
            raise LoginError(f"{named} is refused: it has the address {found}, which is {objection.what}")

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, follow no redirects, and return the response with its whole body.

        Raises:
            LoginError: The URL is refused, or its server cannot be reached or exceeds a limit.
        """
        url = str(request.url)
        self.check(url)
        if self._tls is None:
            self._tls = await asyncio.to_thread(httpx2.create_ssl_context)
        request.headers["Accept-Encoding"] = "identity"
        request.headers.setdefault("Accept", "application/json")  # else, some answer with a form
        transport = PacedTransport(url, self._tls, None if origin_of(url) == self._origin else self)
        try:
            async with asyncio.timeout(_SECONDS), httpx2.AsyncClient(transport=transport, timeout=_SECONDS) as client:
                response = await client.send(request, stream=True, auth=None, follow_redirects=False)
                body = bytearray()
                async for part in response.aiter_raw():
                    body += part
                    if len(body) > _MAX_BODY:
                        raise LoginError(f"{_shown(url)} sent more than {_MAX_BODY} bytes")
        except TimeoutError as error:
            raise LoginError(f"{_shown(url)} did not answer within {_SECONDS:g} s") from error
        except httpx2.HTTPError as error:
            if isinstance(error, LoginError):
                raise
            raise LoginError(f"{_shown(url)} cannot be reached: {str(error) or type(error).__name__}") from error
        # Without the other headers, nothing is unpacked.
        headers = {name: response.headers[name] for name in ("WWW-Authenticate", "Content-Type") if name in response.headers}
        return httpx2.Response(response.status_code, headers=headers, content=bytes(body), request=request)

    async def connect_tcp(  # type: ignore[override]  # the options are passed on unchanged
        self, host: str, port: int, **options: Any
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to a checked address: a second lookup of the name could return others."""
        try:
            found = list(dict.fromkeys(await resolve(host)))
        except OSError as error:
            raise httpcore2.ConnectError(f"its name cannot be resolved: {error.strerror or error}") from error
        for address in found:
            self._check_address(address, host)
        for address in found[:-1]:
            try:
                return await self._backend.connect_tcp(address, port, **options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._backend.connect_tcp(found[-1], port, **options)


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of a URL."""
    parsed = httpx2.URL(url)
    return parsed.scheme, parsed.host, parsed.port


def _shown(url: str) -> str:
    """Return a URL without its query, which can hold secrets."""
    return printable(cut(url.partition("?")[0]), lines=False)
