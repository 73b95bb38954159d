"""HTTP/1.1 for tool ports: one request at a time per connection, known lengths, and limits.

Requests are parsed with httptools and answered by one task in one write, because the overhead of a request counts with
thousands of gathered calls.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import httptools

PATIENCE = 30.0
"""Seconds for a request to arrive, from its first byte, or the connection, to its last."""

IDLE = 75.0
"""Seconds that an idle connection is kept; longer than `runner` keeps its own, so that it never writes to a closing one."""

_MAX_HEAD = 64 * 1024
_PIECE = 256 * 1024
"""Bytes of an answer that are written at once: bytes that the client does not read at once are copied."""


class Request:
    """A request whose body may still be arriving.

    Attributes:
        method: Such as ``POST``.
        path: The path, without a query.
        headers: Names, in lower case, and values.
        websocket: Whether it requests a WebSocket.
    """

    __slots__ = ("_body", "_continue", "_whole", "headers", "method", "path", "url", "websocket")

    def __init__(self) -> None:
        self.method = self.path = ""
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.websocket = False
        self._body = bytearray()
        self._whole: asyncio.Future[None] | bool = False
        self._continue: Callable[[], None] | None = None

    async def body(self) -> bytes:
        """Return the body, once it has arrived completely. The headers have its length."""
        if self._whole is False:
            self._whole = asyncio.get_running_loop().create_future()
            if self._continue is not None:
                self._continue()
            await self._whole
        return bytes(self._body)

    def asks_first(self, proceed: Callable[[], None]) -> None:
        """Set a function to call when the body is requested, for ``100 Continue``."""
        self._continue = proceed

    def feed(self, part: bytes) -> None:
        """Add a part of the body."""
        self._body += part

    def end(self) -> None:
        """Mark the body as complete."""
        waiting, self._whole = self._whole, True
        if isinstance(waiting, asyncio.Future) and not waiting.done():
            waiting.set_result(None)


App = Callable[[Request], Awaitable[tuple[int, bytes]]]
"""Answers a request with an HTTP status and JSON. It is cancelled when the client has disconnected."""


@dataclass(slots=True)
class PortState:
    """The shared state of a port's connections.

    Attributes:
        app: Answers requests.
        full: Returns whether further connections are refused.
        websocket: Creates the protocol of a WebSocket; None if requests for one go to `app`, which refuses them.
        connections: The open connections.
        tasks: Requests that are being answered.
    """

    app: App
    full: Callable[[], bool]
    websocket: Callable[[], asyncio.Protocol] | None = None
    connections: set[Any] = field(default_factory=set)  # of HTTP and of WebSockets
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Connection(asyncio.Protocol):
    """A connection to a port. A client that sends a request before the previous one is answered is disconnected."""

    transport: asyncio.Transport

    def __init__(self, port: PortState) -> None:
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._request: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._fed = 0  # bytes of the arriving request
        self._in_head, self._coming = True, False
        self._keep, self._upgrading = True, False
        self._late: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._answered = 0.0
        self._writable: asyncio.Future[None] | None = None  # only while the client does not read its answers

    def shutdown(self) -> None:
        """Close the connection, after the answer to a running request."""
        self._keep = False
        if self._task is None:
            self.transport.close()

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a connection, unless there are too many."""
        self.transport = cast(asyncio.Transport, transport)
        if self._port.full():
            self.transport.abort()
            return
        self._port.connections.add(self)
        # asyncio does this for sockets of protocol IPPROTO_TCP, not 0. Without it an answer may take the 40 ms of a delayed
        # acknowledgement.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._late = self._loop.call_later(PATIENCE, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request without a client: an interrupted cell withdraws its approval requests and its calls."""
        self._leave()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse received data, and end the connection if a head is too long."""
        self._fed += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._upgrading:
                self._hand_over()
                return
        except httptools.HttpParserError:
            self._refuse()
            return
        if self._in_head and self._fed > _MAX_HEAD:
            self.transport.abort()
        # Most requests arrive in one piece, and need no timer.
        if self._coming and self._late is None:
            self._late = self._loop.call_later(PATIENCE, self.transport.abort)
        elif not self._coming and self._request is not None and self._late is not None:
            self._late.cancel()
            self._late = None

    def pause_writing(self) -> None:
        """Stop reading requests of a client that does not read its answers."""
        self.transport.pause_reading()
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """Resume reading, once the whole answer is written."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None
        if self._task is None:
            self.transport.resume_reading()

    # Callbacks of the parser. Exceptions from them end the parsing.

    def on_message_begin(self) -> None:
        """Start a request."""
        if self._request is not None:
            raise ValueError("send one request at a time")
        self._request, self._coming = Request(), True

    def on_url(self, url: bytes) -> None:
        """Add a part of the URL."""
        self._current.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. Chunked bodies are refused: a length is a bound, and trailers would have none."""
        name = name.lower()
        if name == b"transfer-encoding":
            raise ValueError("a body needs a Content-Length")
        self._current.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Start to answer."""
        self._in_head = False
        request, parser = self._current, self._parser
        request.method = parser.get_method().decode("ascii")
        path = httptools.parse_url(request.url).path.decode("ascii")
        request.path = unquote(path) if "%" in path else path
        upgrade = parser.should_upgrade()
        self._keep = self._keep and parser.should_keep_alive() and parser.get_http_version() == "1.1" and not upgrade
        request.websocket = upgrade and dict(request.headers).get(b"upgrade", b"").lower() == b"websocket"
        self._upgrading = request.websocket and self._port.websocket is not None
        if self._upgrading:
            return
        if (b"expect", b"100-continue") in request.headers:
            request.asks_first(lambda: self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n"))
        self._task = self._loop.create_task(self._answer(request))
        self._port.tasks.add(self._task)
        self._task.add_done_callback(self._port.tasks.discard)

    def on_body(self, body: bytes) -> None:
        """Add a part of the body, unless the request was already answered."""
        if self._task is not None:
            self._current.feed(body)

    def on_message_complete(self) -> None:
        """Reset the counters, for the next request."""
        self._coming, self._in_head, self._fed = False, True, 0
        self._current.end()
        if self._task is None and not self._upgrading:
            self._request = None

    # Answers.

    @property
    def _current(self) -> Request:
        assert self._request is not None
        return self._request

    async def _answer(self, request: Request) -> None:
        try:
            status, body = await self._port.app(request)
            shown = b"" if request.method == "HEAD" else body
            self._write(status, b"application/json", len(body), shown[:_PIECE])
            await self._write_rest(shown)
        except BaseException:
            self.transport.abort()  # the client would otherwise wait for an answer that never comes
            raise
        self._task = None
        if not self._coming:
            self._request = None
        if self._writable is None:
            self.transport.resume_reading()
        if not self._keep:
            self.transport.close()
            return
        self._answered = self._loop.time()
        if self._idle is None:
            self._idle = self._loop.call_later(IDLE, self._close_if_idle)

    async def _write_rest(self, body: bytes) -> None:
        """Write the pieces after the first as the client reads."""
        for start in range(_PIECE, len(body), _PIECE):
            await (self._writable or asyncio.sleep(0))
            self.transport.write(memoryview(body)[start : start + _PIECE])

    def _write(self, status: int, kind: bytes, length: int, body: bytes) -> None:
        close = b"" if self._keep else b"connection: close\r\n"
        head = b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n%s\r\n"
        # In one piece, so that the waiting code wakes up once.
        self.transport.write(head % (status, HTTPStatus(status).phrase.encode(), kind, length, close) + body)

    def _refuse(self) -> None:
        """Answer a malformed request, unless another answer is being written."""
        if self._task is not None:
            self.transport.abort()
            return
        self._keep = False
        self._write(400, b"text/plain", 19, b"This is not a call.")
        self.transport.close()

    def _close_if_idle(self) -> None:
        """Close an idle connection. One timer serves the connection, not each request."""
        left = IDLE if self._request is not None else self._answered + IDLE - self._loop.time()
        self._idle = self._loop.call_later(left, self._close_if_idle) if left > 0 else None
        if left <= 0:
            self.transport.close()

    def _hand_over(self) -> None:
        """Hand the connection over to a protocol with its own limits."""
        self._leave()
        assert self._port.websocket is not None
        protocol, request = self._port.websocket(), self._current
        lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url)]
        lines += [b"%s: %s" % header for header in request.headers]
        protocol.connection_made(self.transport)
        protocol.data_received(b"\r\n".join([*lines, b"", b""]))
        self.transport.set_protocol(protocol)

    def _leave(self) -> None:
        del self._parser  # it refers to this object
        self._port.connections.discard(self)
        for timer in (self._late, self._idle):
            if timer is not None:
                timer.cancel()
