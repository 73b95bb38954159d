"""One WebSocket on a connection of `http`, with the sans-I/O protocol of the websockets library."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from websockets.exceptions import ConnectionClosed, InvalidState
from websockets.frames import Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

if TYPE_CHECKING:
    from websockets.frames import Frame

    from cellblock.tools.serving.http import PortState

_MAX_MESSAGE = 64 * 1024
_MAX_WAITING = 64  # unread messages
_PIECE = 2048
"""Bytes that are parsed per turn of the loop: they can be 340 frames, and a small frame takes as long as a large one."""
_PING = 20.0
"""Seconds between two pings; a client that has not answered one by the next is disconnected."""
_SECONDS_TO_CLOSE = 2.0


class WebSocket(asyncio.Protocol):
    """The server's end of a WebSocket. `accept` or `reject` it first.

    Attributes:
        path: The requested path.
        headers: Names, in lower case, and values of the request.
    """

    def __init__(self, port: PortState, serve: Callable[[WebSocket], Awaitable[None]]) -> None:
        """Set up, with the function that serves it."""
        self.path = ""
        self.headers: list[tuple[bytes, bytes]] = []
        self._port = port
        self._serve = serve
        self._protocol = ServerProtocol(max_size=_MAX_MESSAGE)
        self._request: Request | None = None
        self._messages: asyncio.Queue[str | None] = asyncio.Queue()
        self._parts: list[bytes] = []
        self._unparsed = bytearray()
        self._writable = asyncio.Event()
        self._writable.set()
        self._alive = True
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    # The interface for the code that serves it.

    async def accept(self) -> None:
        assert self._request is not None
        self._protocol.send_response(self._protocol.accept(self._request))
        self._flush()
        self._ping()

    async def reject(self, status: int, reason: str) -> None:
        """Reject the WebSocket with an HTTP status."""
        self._protocol.send_response(self._protocol.reject(HTTPStatus(status), reason))
        self._flush()

    async def receive(self) -> str | None:
        """Return the next message; None at the end."""
        message = await self._messages.get()
        self._read_or_wait()
        return message

    async def send(self, text: str) -> None:
        """Send a message; wait while the client does not read. Does nothing if the WebSocket is closed."""
        await self._writable.wait()
        try:
            self._protocol.send_text(text.encode())
        except (ConnectionClosed, InvalidState):
            return  # `receive` reports it
        self._flush()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code, reason)
            self._flush()

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._port.connections.add(self)

    def data_received(self, data: bytes) -> None:
        going_on = bool(self._unparsed)
        self._unparsed += data
        if not going_on:
            self._parse()

    def _parse(self) -> None:
        """Parse a piece of the received bytes; the rest in later iterations of the loop."""
        if self.transport.is_closing():
            self._unparsed.clear()
            return
        piece = bytes(self._unparsed[:_PIECE])
        del self._unparsed[:_PIECE]
        self._protocol.receive_data(piece)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._begin(event)
            else:
                self._take(cast("Frame", event))
        self._flush()
        if self._unparsed:
            asyncio.get_running_loop().call_soon(self._parse)
        self._read_or_wait()

    def _read_or_wait(self) -> None:
        """Resume reading, unless something is left to parse, receive or send."""
        waits = bool(self._unparsed) or self._messages.qsize() >= _MAX_WAITING or not self._writable.is_set()
        if self._transport is not None:
            (self._transport.pause_reading if waits else self._transport.resume_reading)()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._port.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._messages.put_nowait(None)
        self._writable.set()

    def pause_writing(self) -> None:
        """Block senders, and stop reading frames that would need an answer."""
        self._writable.clear()
        self._read_or_wait()

    def resume_writing(self) -> None:
        """Unblock senders."""
        self._writable.set()
        self._read_or_wait()

    def shutdown(self) -> None:
        """Close the connection, because the server stops."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1001)
            self._flush()
        elif self._transport is not None:
            self._transport.close()

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def _begin(self, request: Request) -> None:
        self._request = request
        self.path = request.path
        self.headers = [
            (name.lower().encode(), value.encode("latin-1", "replace")) for name, value in request.headers.raw_items()
        ]
        task = asyncio.get_running_loop().create_task(self._served())
        self._port.tasks.add(task)
        task.add_done_callback(self._port.tasks.discard)

    async def _served(self) -> None:
        try:
            await self._serve(self)
        finally:
            await self.close()
            # A client that does not answer would keep the connection open.
            asyncio.get_running_loop().call_later(_SECONDS_TO_CLOSE, self.transport.abort)

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.PONG:
            self._alive = True
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        if frame.data:  # frames without bytes have no other limit
            self._parts.append(bytes(frame.data))
        if not frame.fin:
            return
        message, self._parts = b"".join(self._parts), []
        self._messages.put_nowait(message.decode("utf-8", "replace"))

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self.transport.write(data)
            elif self.transport.can_write_eof():
                self.transport.write_eof()
        if self._protocol.close_expected():
            self._messages.put_nowait(None)
            asyncio.get_running_loop().call_later(_SECONDS_TO_CLOSE, self.transport.abort)

    def _ping(self) -> None:
        """Ping the client from time to time."""
        if self._protocol.state is not State.OPEN:
            return
        if not self._alive:
            self.transport.abort()
            return
        self._alive = False
        self._protocol.send_ping(b"")
        self._flush()
        self._timer = asyncio.get_running_loop().call_later(_PING, self._ping)
