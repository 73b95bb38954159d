"""HTTP as uvicorn speaks it, with bounds that it lacks: on headers, on connections, and on clients that do not read."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 64 * 1024
"""Bytes of a request before its body."""

MAX_CONNECTIONS = 4000
"""More are closed at the door: a program has so many descriptors, and the daemon's connections need some."""

HEAD_SECONDS = 10.0
"""Seconds in which the head of a request has to come."""

READ_SECONDS = 60.0
"""Seconds for which a client may leave an answer unread."""


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head = 0
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """See `asyncio.Protocol`."""
        super().connection_made(cast("asyncio.Transport", _Joined(transport, self.loop)))
        if crowded(len(self.connections)):
            transport.abort()
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        _cancel(self._head_timer)
        _cancel(self._unread_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head += len(data)
            if too_long(self._head):
                self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        """See `httptools`."""
        super().on_message_begin()
        self._head, self._in_head = 0, True
        self._expect_head()

    def on_headers_complete(self) -> None:
        """See `httptools`."""
        self._in_head = False
        _cancel(self._head_timer)
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().pause_writing()
        self._unread_timer = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        _cancel(self._unread_timer)
        super().resume_writing()

    def _expect_head(self) -> None:
        _cancel(self._head_timer)
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)


class _Joined:
    """A transport that sends the head of an answer together with its body: that saves a system call, and the client a turn."""

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send bytes: a head with what follows it, or a moment later if nothing does."""
        if not self._head and data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self._flush)
        elif self._head:
            data, self._head = self._head + data, b""
            self._transport.write(data)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection when all is sent."""
        self._flush()
        self._transport.close()

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


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
