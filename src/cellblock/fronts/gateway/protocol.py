"""uvicorn's HTTP with additional limits on headers, connections, and clients that do not read.

An answer can be sent before the request's body has arrived, for example a refusal. Closing a connection with unread bytes
resets it, and the client may lose the answer. The rest of the body is therefore read and dropped, for a limited time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from websockets.frames import Frame

MAX_HEAD = 64 * 1024
"""Bytes of a request before its body."""

MAX_CONNECTIONS = 4000
"""For one more, the longest idle connection is closed, or else the new one: descriptors are limited, and
the daemon's connections need some."""

HEAD_SECONDS = 10.0
"""Seconds in which the head of a request has to come, and a TLS handshake before it."""

READ_SECONDS = 60.0
"""Seconds for which a client may leave an answer unread."""

MAX_FRAGMENTS = 10_000
"""Frames that one message on a WebSocket may have. Its bytes are limited, too, but a frame can be empty."""

REST_SECONDS = 10.0
"""Seconds in which the rest of a body has to come if its request is answered already."""


HTTP_READ = 64 * 1024
WEBSOCKET_READ = 16 * 1024
"""Bytes that one turn of the loop takes from a connection: they can be thousands of chunks or frames."""


class BoundedHttp(HttpToolsProtocol):
    """A connection.

    Attributes:
        tls: The encryption; None for plain HTTP. Encryption starts here, not in asyncio, which reports a connection only
            after its handshake. Any number of uncounted connections could be open.
    """

    tls: ClassVar[ssl.SSLContext | None] = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._joined: _Joined | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        self._head = 0
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self.transport = transport
        self.connections.add(self)
        if crowded(len(self.connections)):
            oldest = next(iter(self._silent), self)
            self._silent.pop(oldest, None)  # many can arrive in one iteration of the loop, before the first has ended
            oldest.transport.abort()
            if oldest is self:
                return
        self._expect_head()
        if self.tls is None:
            self._begin(transport)
        else:
            transport.pause_reading()  # until it is known who decrypts the data
            self._handshake = self.loop.create_task(self._encrypt(transport, self.tls))

    async def _encrypt(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        try:
            encrypted = await self.loop.start_tls(
                transport, self, context, server_side=True, ssl_shutdown_timeout=REST_SECONDS
            )
        except OSError as error:  # the client does not use TLS, or has left
            self.connection_lost(error)
            return
        if encrypted is None or encrypted.is_closing():
            self.connection_lost(None)
            return
        self._begin(encrypted)
        for data in self._early:
            self.data_received(data)
        self._early.clear()

    def _begin(self, transport: asyncio.Transport) -> None:
        self._joined = _Joined(transport, self.loop)
        self._joined.limit_reads(HTTP_READ)
        super().connection_made(cast("asyncio.Transport", self._joined))

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._head_timer)
        _cancel(self._unread_timer)
        self._silent.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._joined is None:
            self._early.append(data)  # data that arrived together with the end of the handshake
            return
        self._joined.take(data, HTTP_READ, self._received)

    def _received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if (protocol := self.transport.get_protocol()) not in (self, None):
            cast("asyncio.Protocol", protocol).data_received(data)  # the connection was upgraded to a WebSocket
            return
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head += len(data)
            if too_long(self._head):
                self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head, self._in_head = 0, True
        self._expect_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Drop trailers after a body, because nothing reads them and their size is unlimited."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        assert self._joined is not None
        self._joined.unread = True
        _cancel(self._head_timer)
        self._silent.pop(self, None)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        assert self._joined is not None
        self._joined.unread = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Expect the rest of the answered request's body soon."""
        super().on_response_complete()
        assert self._joined is not None
        if self.cycle.response_complete:
            self._silent[self] = None  # whether it is closed now or kept: if there are too many, this connection goes first
        if self._joined.unread and self.cycle.response_complete:
            _cancel(self._head_timer)
            self._head_timer = self.loop.call_later(REST_SECONDS, self.transport.abort)

    def handle_websocket_upgrade(self) -> None:
        """Answer a handshake whose head is not a valid WebSocket's; uvicorn leaves it without an answer."""
        super().handle_websocket_upgrade()
        assert self._joined is not None
        self._joined.limit_reads(WEBSOCKET_READ)
        handshake = getattr(self.transport.get_protocol(), "conn", None)
        if getattr(handshake, "handshake_exc", None) is not None and not self.transport.is_closing():
            self.send_400_response("The handshake of the WebSocket is not valid.")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        _cancel(self._unread_timer)
        super().resume_writing()

    @property
    def _silent(self) -> dict[BoundedHttp, None]:
        """The connections of this server whose head is incomplete, oldest first."""
        found: dict[BoundedHttp, None] = vars(self.server_state).setdefault("silent", {})
        return found

    def _expect_head(self) -> None:
        self._silent.pop(self, None)
        self._silent[self] = None
        _cancel(self._head_timer)
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket with limits on reads and messages."""

    def data_received(self, data: bytes) -> None:
        cast("_Joined", self.transport).take(data, WEBSOCKET_READ, self._received)

    def _received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)

    def handle_cont(self, event: Frame) -> None:
        """Limit the frames that uvicorn buffers until a message is complete."""
        if self.transport.is_closing():
            return
        super().handle_cont(event)
        if len(self.frames) > MAX_FRAGMENTS:
            self.frames = []
            self.conn.fail(1009, f"a message has more than {MAX_FRAGMENTS} fragments")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()


class _Joined:
    """A transport that sends the head of an answer together with its body.

    This saves a system call and a wakeup of the client.

    Attributes:
        unread: Whether more of the request will arrive.
    """

    __slots__ = ("_closed", "_head", "_loop", "_paused", "_rest", "_transport", "unread")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self._closed = False
        self._paused = False
        self._rest: tuple[bytes, int, Callable[[bytes], object]] | None = None
        self.unread = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send bytes: a head together with the following data, or a moment later if nothing follows."""
        if not self._head and data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self._flush)
        elif self._head:
            data, self._head = self._head + data, b""
            self._transport.write(data)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection when everything is sent, and the rest of the request is read."""
        self._flush()
        if self.is_closing() or not lingers(self._transport, unread=self.unread):
            self._closed = True
            self._transport.close()
            return
        self._closed = True
        self._transport.write_eof()
        self._transport.resume_reading()
        self._loop.call_later(REST_SECONDS, self._transport.abort)

    def limit_reads(self, size: int) -> None:
        """Limit the bytes read in one iteration of the loop, if the transport is asyncio's own and not encrypted."""
        if hasattr(self._transport, "max_size"):
            cast("Any", self._transport).max_size = size

    def take(self, data: bytes, size: int, receive: Callable[[bytes], object]) -> None:
        """Pass on received data, at most `size` bytes per iteration of the loop: encrypted data arrives in larger pieces.

        Nothing more is read before all of the data is passed on.
        """
        if self._rest is not None:
            self._rest = (self._rest[0] + data, size, receive)
            return
        if len(data) > size:
            self._transport.pause_reading()
            self._rest = (data[size:], size, receive)
            self._loop.call_soon(self._take_rest)
        receive(data[:size])

    def _take_rest(self) -> None:
        assert self._rest is not None
        data, size, receive = self._rest
        self._rest = None
        if self._transport.is_closing():
            return
        if len(data) <= size and not self._paused:
            self._transport.resume_reading()
        self.take(data, size, receive)

    def pause_reading(self) -> None:
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if self._rest is None:
            self._transport.resume_reading()

    def is_closing(self) -> bool:
        """Return whether the connection is closed, or will be closed soon."""
        return self._closed or self._transport.is_closing()

    def _flush(self) -> None:
        if self._head:
            data, self._head = self._head, b""
            self._transport.write(data)


def crowded(connections: int) -> bool:
    """Return whether there are too many connections."""
    return connections > MAX_CONNECTIONS


def too_long(size: int) -> bool:
    """Return whether the head of a request has too many bytes."""
    return size > MAX_HEAD


def lingers(transport: asyncio.Transport, *, unread: bool) -> bool:
    """Return whether a connection first reads the client's remaining data before it closes."""
    return unread and transport.can_write_eof()  # TLS cannot close one direction


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
