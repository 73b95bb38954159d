"""The transport to an MCP server over HTTP, on a client that limits reads and reports failures."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from cellblock.tools.calling.content import MAX_MESSAGE
from cellblock.tools.mcp.events import EventError, Events
from cellblock.tools.mcp.large import LargeResults, RefusedMessageError
from cellblock.tools.mcp.logins import refusal_of
from cellblock.tools.mcp.named_urls import LoginError, NamedUrls
from cellblock.tools.mcp.paced import PacedTransport
from cellblock.tools.mcp.params import RemoteServer

if TYPE_CHECKING:
    from cellblock.tools.mcp.oauth import StoredLogin

_MAX_COOKIES = 100
_SECONDS_TO_LEAVE = 2.0  # for telling the server that its session has ended
_SECONDS_TO_PING = 2.0
_PING = "cellblock-ping"  # no id of the SDK's requests, or of ours


class HttpTransport:
    """The connection to one server by URL: like the SDK's transports, a context manager for a read and a write stream.

    Args:
        params: The server's parameters, resolved.
        connect_timeout: Limit in seconds for the TCP connection.
        lost: Called when the connection can no longer be used.
        server: The server's name.

    Attributes:
        large: The large results that were read.
    """

    def __init__(self, params: RemoteServer, connect_timeout: float, lost: Callable[[], None], server: str = "") -> None:
        self.large = LargeResults()
        self._server = server
        self._login: StoredLogin | None = None
        self._params = params
        self._timeout = connect_timeout
        self._lost = lost
        self._stack = AsyncExitStack()
        self._tls: ssl.SSLContext | None = None
        self.trouble: str | None = None
        """The last failure: an answer of the server other than success, or why it could not be reached."""

    async def __aenter__(self) -> Any:
        """Prepare the connection, as far as possible before the first message."""
        headers = dict(self._params.headers)
        self._tls = await asyncio.to_thread(httpx2.create_ssl_context)  # it reads all CA certificates
        if self._params.auth is not None:
            from cellblock.tools.mcp.oauth import StoredLogin  # few servers need it

            self._login = StoredLogin(self._server, self._params, NamedUrls(self._params.url, self._tls))
        try:
            if self._params.transport == "sse":
                entering: Any = sse_client(self._params.url, headers, httpx_client_factory=self._client)
            else:
                client = await self._stack.enter_async_context(self._client(headers))
                entering = streamable_http_client(self._params.url, http_client=client, max_sse_event_size=None)
            return await self._stack.enter_async_context(entering)
        except BaseException:
            await self._stack.aclose()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Disconnect, and end the server's session."""
        # Not an anyio scope: scopes that end here were entered outside of it.
        try:
            async with asyncio.timeout(_SECONDS_TO_LEAVE):
                return await self._stack.__aexit__(kind, error, traceback)
        except TimeoutError:
            return None
        finally:
            if self._login is not None:
                with anyio.CancelScope(shield=True):
                    await self._login.finish()

    def explain(self) -> str:
        """Return the failure, as far as this end knows; else an empty text."""
        return self.trouble or ""

    def secrets(self) -> list[str]:
        """Return the tokens of the login."""
        return [] if self._login is None else self._login.secrets()

    def stderr(self) -> str:
        """Return nothing: a server over HTTP does not share its standard error."""
        return ""

    def noticed(self, request: httpx2.Request, trouble: str, *, final: bool) -> None:
        """Record the failure of a request; ``final``: the connection is unusable."""
        if request.method == "POST" or final:
            self.trouble = trouble
            # The SDK swallows a POST that fails with server-sent events, and a call would wait forever.
            if final or self._params.transport == "sse":
                self._lost()

    def _client(
        self, headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> httpx2.AsyncClient:
        assert self._tls is not None
        # A compressed answer could have any size once unpacked. Calls have their own deadlines.
        return _Client(
            self.noticed,
            self.large,
            login=self._login,
            refusal=functools.partial(refusal_of, self._server, self._params),
            posts_are_answered=self._params.transport != "sse",
            headers={**(headers or {}), "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(None, connect=self._timeout),
            auth=auth,
            transport=PacedTransport(self._params.url, self._tls),
        )


class _Notice(Protocol):
    """A callback for the failure of a request."""

    def __call__(self, request: httpx2.Request, trouble: str, *, final: bool) -> None: ...


class _Client(httpx2.AsyncClient):
    """A client with limits on received data.

    Args:
        noticed: Called with failures.
        login: The login that authorizes requests.
        refusal: Returns the message about a status and a header ``WWW-Authenticate``, if a login can help.
        posts_are_answered: Whether the response to a POST may be an event stream.
        options: Options of `httpx2.AsyncClient`.
    """

    def __init__(
        self,
        noticed: _Notice,
        large: LargeResults,
        *,
        login: StoredLogin | None,
        refusal: Callable[[int, str], str],
        posts_are_answered: bool,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._login = login
        self._refusal = refusal
        self._noticed = noticed
        self._large = large
        self._streaming = ("GET", "POST") if posts_are_answered else ("GET",)

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            response = await self._send_authorized(request, options)
        except LoginError as error:
            self._noticed(request, str(error), final=True)
            return httpx2.Response(401, request=request)  # the server would answer the same without a token
        except httpx2.HTTPError as error:
            self._noticed(request, f"{request.url.host}: {str(error) or type(error).__name__}", final=False)
            raise
        if response.status_code >= 400:
            refusal = self._refusal(response.status_code, response.headers.get("WWW-Authenticate", ""))
            final = bool(refusal and response.status_code == 401) or await self._is_forgotten(request, response.status_code)
            self._noticed(request, refusal or f"HTTP {response.status_code} {response.reason_phrase}", final=final)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await self._refuse(response, "it sent a compressed body, which was not accepted")
        if len(self.cookies.jar) > _MAX_COOKIES:
            await self._refuse(response, f"it set more than {_MAX_COOKIES} cookies")
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = self._bounded(request, response, response.stream)
        return response

    async def _send_authorized(self, request: httpx2.Request, options: dict[str, Any]) -> httpx2.Response:
        """Send a request with the token of the login, if there is one; again with another token if that was refused."""
        token = None if self._login is None else await self._login.authorize(request)
        response = await super().send(request, **options)
        if self._login is None or token is None:
            return response
        if response.status_code == 401:
            await response.aclose()  # its body has no limit yet
            if await self._login.authorize(request, refused=token):
                response = await super().send(request, **options)
        if response.status_code == 403:
            await self._login.want(response.headers.get("WWW-Authenticate", ""))
        return response

    async def _is_forgotten(self, request: httpx2.Request, status: int) -> bool:
        """Return whether a refused request means that the server no longer knows its session.

        404 says so (2025-11-25, transports, session management). As the answer to a GET, it says that the server has no
        stream. Many servers send 400 instead, which can also mean that the request is invalid. A ping is always valid.
        """
        if request.method != "POST" or "mcp-session-id" not in request.headers:
            return False
        if status != 400:
            return status == 404
        headers = {name: value for name, value in request.headers.items() if name.lower() != "content-length"}
        ping = self.build_request("POST", request.url, headers=headers, json={"jsonrpc": "2.0", "id": _PING, "method": "ping"})
        try:
            async with asyncio.timeout(_SECONDS_TO_PING):
                answer = await super().send(ping, stream=True)
                await answer.aclose()
        except (httpx2.HTTPError, TimeoutError):
            return False
        return answer.status_code in (400, 404)

    async def _refuse(self, response: httpx2.Response, complaint: str) -> None:
        await response.aclose()
        self._noticed(response.request, complaint, final=True)
        raise httpx2.DecodingError(complaint, request=response.request)

    def _bounded(
        self, request: httpx2.Request, response: httpx2.Response, stream: httpx2.AsyncByteStream
    ) -> httpx2.AsyncByteStream:
        """Return a limited stream: an endless one of events, or a body that must end."""
        kind = response.headers.get("content-type", "").lower()
        if not response.is_success or request.method not in self._streaming or not kind.startswith("text/event-stream"):
            return _Body(stream, self._large)

        def over(complaint: str) -> None:
            # If the answer to one request fails, only this request fails. A failure of the shared stream fails all requests.
            self._noticed(request, complaint, final=request.method == "GET")

        return _EventStream(stream, self._large, over)


class _Body(httpx2.AsyncByteStream):
    """The complete body of a response, up to a limit."""

    def __init__(self, stream: httpx2.AsyncByteStream, large: LargeResults) -> None:
        self._stream = stream
        self._large = large

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        async for part in self._stream:
            body += part
            if len(body) > MAX_MESSAGE:
                # The SDK turns this into an error of this request only.
                raise httpx2.StreamError(f"it sent a message of more than {MAX_MESSAGE} bytes, which is the limit")
        try:
            yield await self._large.condense(bytes(body))
        except RefusedMessageError as error:
            raise httpx2.StreamError(str(error)) from error

    async def aclose(self) -> None:
        await self._stream.aclose()


class _EventStream(httpx2.AsyncByteStream):
    """A stream of events, one at a time and within limits."""

    def __init__(self, stream: httpx2.AsyncByteStream, large: LargeResults, over: Callable[[str], None]) -> None:
        self._stream = stream
        self._large = large
        self._over = over

    async def __aiter__(self) -> AsyncIterator[bytes]:
        events = Events(MAX_MESSAGE)
        try:
            async for part in self._stream:
                events.feed(part)
                while (event := events.next()) is not None:
                    yield replace(event, data=await self._large.condense(event.data)).encoded()
        except (EventError, RefusedMessageError) as error:
            self._over(str(error))
            raise httpx2.SSEError(str(error)) from error

    async def aclose(self) -> None:
        await self._stream.aclose()
