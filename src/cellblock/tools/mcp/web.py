"""Talks to an MCP server over HTTP: the SDK's transports on a client that bounds what it reads and tells what went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from cellblock.tools.calling.content import MAX_MESSAGE
from cellblock.tools.mcp.params import HttpServer

_SECONDS_TO_LEAVE = 2.0  # for telling the server that its session has ended


class HttpTransport:
    """The connection to one server by URL, as the SDK expects it: a context manager for a stream to read and one to write.

    Args:
        params: Where the server is, resolved.
        connect_timeout: Seconds to establish a TCP connection in.
        lost: Called when the connection turns out to be of no use any more.
    """

    def __init__(self, params: HttpServer, connect_timeout: float, lost: Callable[[], None]) -> None:
        self._params = params
        self._timeout = connect_timeout
        self._lost = lost
        self._stack = AsyncExitStack()
        self.trouble: str | None = None
        """What the server last answered that is no success, or why it could not be asked."""

    async def __aenter__(self) -> Any:
        """Connect, as far as that is done ahead of the first message."""
        headers = dict(self._params.headers)
        try:
            if self._params.transport == "sse":
                entering: Any = sse_client(self._params.url, headers, httpx_client_factory=self._client)
            else:
                client = await self._stack.enter_async_context(self._client(headers))
                entering = streamable_http_client(self._params.url, http_client=client, max_sse_event_size=MAX_MESSAGE)
            return await self._stack.enter_async_context(entering)
        except BaseException:
            await self._stack.aclose()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Disconnect, and tell the server."""
        # Not a scope of anyio: those that are left here were entered outside it.
        try:
            async with asyncio.timeout(_SECONDS_TO_LEAVE):
                return await self._stack.__aexit__(kind, error, traceback)
        except TimeoutError:
            return None

    def explain(self) -> str:
        """Return what went wrong, as far as this end knows; empty where it does not."""
        return self.trouble or ""

    def stderr(self) -> str:
        """Return nothing: a server over HTTP keeps its standard error to itself."""
        return ""

    def noticed(self, request: httpx2.Request, trouble: str, *, final: bool) -> None:
        """Take note of what went wrong with a request; ``final``: the connection is of no use any more."""
        if request.method == "POST":
            self.trouble = trouble
            # The SDK swallows a POST that fails with server-sent events, and a call would wait for ever.
            if final or self._params.transport == "sse":
                self._lost()

    def _client(
        self, headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> httpx2.AsyncClient:
        # A compressed answer could be any size once it is unpacked. Calls have deadlines of their own.
        return _Client(
            self.noticed,
            headers={**(headers or {}), "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(None, connect=self._timeout),
            auth=auth,
        )


class _Client(httpx2.AsyncClient):
    """A client that bounds what it reads."""

    def __init__(self, noticed: Callable[..., None], **options: Any) -> None:
        super().__init__(**options)
        self._noticed = noticed

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request."""
        try:
            response = await super().send(request, **options)
        except httpx2.HTTPError as error:
            self._noticed(request, f"{request.url.host}: {str(error) or type(error).__name__}", final=False)
            raise
        if response.status_code >= 400:
            # 404 with a session: the server has forgotten it (2025-11-25, transports, session management).
            forgotten = response.status_code == 404 and "mcp-session-id" in request.headers
            self._noticed(request, f"HTTP {response.status_code} {response.reason_phrase}", final=forgotten)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            self._noticed(request, "it compresses what it was asked not to compress", final=True)
            raise httpx2.DecodingError("an encoding that was not asked for", request=request)
        if isinstance(response.stream, httpx2.AsyncByteStream) and not _is_event_stream(response):
            response.stream = _Bounded(response.stream)
        return response


def _is_event_stream(response: httpx2.Response) -> bool:
    """Whether a response may go on for ever; the SDK bounds each event of it."""
    return bool(response.headers.get("content-type", "").lower().startswith("text/event-stream"))


class _Bounded(httpx2.AsyncByteStream):
    """The body of a response, up to a limit."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > MAX_MESSAGE:
                # An error that the SDK turns into one of this request alone.
                raise httpx2.StreamError(f"it sent a message of more than {MAX_MESSAGE} bytes, which is the limit")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
