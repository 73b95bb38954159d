"""Forwards one HTTP request, or one WebSocket, to a server in a session. What the server sends is hostile.

Each request has its own connection, and both directions are parsed and written again, so neither side can hide a second
request or answer in the first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import h11
from websockets.client import ClientProtocol
from websockets.exceptions import WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Request as HandshakeRequest
from websockets.protocol import State
from websockets.uri import parse_uri

import cellblock.common.linear_h11  # noqa: F401  # h11 takes quadratic time otherwise
from cellblock.common.http_headers import end_to_end
from cellblock.common.tasks import first_of
from cellblock.errors import CellblockError
from cellblock.operations.programs import ConnectPort, WritePort
from cellblock.service.daemon.link import SessionLink

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from cellblock.host import Session

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]
MAX_MESSAGE = 16 * 1024 * 1024
"""Bytes of a message of a WebSocket, in each direction."""
_MAX_HEAD = 64 * 1024
"""Bytes of the head of an answer."""
_PATIENCE = 60.0
"""Seconds to wait for the head of an answer."""
_HANDSHAKE = frozenset(b"sec-websocket-" + name for name in (b"key", b"version", b"extensions", b"protocol"))
_NOT_SENT = frozenset((b"host", b"origin", b"referer", b"forwarded", b"expect", b"e2b-traffic-access-token"))
_NOT_ANSWERED = frozenset((b"strict-transport-security", b"alt-svc", b"clear-site-data", b"server", b"date"))
"""Headers that concern this machine's other servers, or the connection to the browser."""


class UnreachableError(Exception):
    """The server in the session gave no answer that can be passed on."""


class Connection(Protocol):
    """A connection to a server in a session."""

    async def read(self) -> bytes:
        """Return what arrives next; empty at the end."""

    async def write(self, data: bytes) -> object:
        """Write, and wait until there is room for more. Data that a server no longer reads is dropped."""


Connect: TypeAlias = Callable[[str, int], AbstractAsyncContextManager[Connection]]
"""Connects to a port of a session."""


class LinkedConnection:
    """A connection through the daemon, or to the node of a cluster."""

    def __init__(self, link: SessionLink, session: str, port: int) -> None:
        """Store the arguments without connecting."""
        self._link = link
        self._session = session
        self._parts: AsyncGenerator[Any, None] = link.follow(ConnectPort(session, port))
        self._id = ""

    async def __aenter__(self) -> Self:
        try:
            self._id = bytes(await anext(self._parts)).decode()
        except BaseException:
            await self._parts.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._parts.aclose()

    async def read(self) -> bytes:
        return bytes(await anext(self._parts, b""))

    async def write(self, data: bytes) -> object:
        return data and await self._link.call(WritePort(self._session, self._id), data)


@asynccontextmanager
async def direct_connection(session: Session, port: int) -> AsyncGenerator[Connection, None]:
    """Connect to a server in a session of this process."""
    reader, writer = await asyncio.open_connection(sock=await session.connect(port), limit=_MAX_HEAD)
    try:
        yield _DirectConnection(reader, writer)
    finally:
        writer.transport.abort()


class _DirectConnection:
    """A connection to a session of this process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        with contextlib.suppress(ConnectionError):  # the server was killed
            return await self._reader.read(_MAX_HEAD)
        return b""

    async def write(self, data: bytes) -> object:
        with contextlib.suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()
        return None


def own_headers(headers: Headers, port: int, origin: str, cookie: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request as the server gets them.

    Args:
        headers: The browser's headers.
        port: The server's port. It sees the host ``localhost:PORT``.
        origin: The origin of the page, which becomes the server's.
        cookie: The name of our cookie, which the server does not get.
    """
    own, theirs = origin.encode(), f"http://localhost:{port}".encode()
    found = [(b"host", f"localhost:{port}".encode())]
    cookies: list[bytes] = []
    for name, value in end_to_end(headers):
        if name == b"origin":
            found.append((name, theirs if value == own else b"null"))
        elif name == b"referer" and value.startswith(own + b"/"):
            found.append((name, theirs + value.removeprefix(own)))
        elif name == b"cookie":
            cookies += (one.strip() for one in value.split(b";") if one.strip().partition(b"=")[0].strip() != cookie)
        elif name == b"authorization" and b" cb_" in value:
            continue  # a token of cellblock
        elif name not in _NOT_SENT and not name.startswith(b"x-forwarded-"):
            found.append((name, value))
    return [*found, (b"cookie", b"; ".join(cookies))] if cookies else found


def passed_headers(headers: Headers, port: int, cookie: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer as the browser gets them."""
    headers = [*headers]
    chunked = any(name == b"transfer-encoding" for name, _ in headers)
    found = []
    for name, value in end_to_end(headers):
        if name in _NOT_ANSWERED or (chunked and name == b"content-length"):  # a length beside chunks is wrong
            continue
        passed: bytes | None = value
        if name == b"set-cookie":
            passed = _host_only(value, cookie)
        elif name == b"location":
            for host in (b"localhost", b"127.0.0.1"):
                if value.startswith(b"http://%b:%d/" % (host, port)):
                    passed = value.removeprefix(b"http://%b:%d" % (host, port))
        if passed is not None:
            found.append((name, passed))
    return found


def _host_only(value: bytes, cookie: bytes) -> bytes | None:
    """Return a cookie without its domain, so that no other host gets it; None for one with our name."""
    first, *rest = value.split(b";")
    if first.partition(b"=")[0].strip() == cookie:
        return None
    return b";".join([first, *(one for one in rest if one.partition(b"=")[0].strip().lower() != b"domain")])


def path_of(scope: Scope) -> bytes:
    """Return the path of a request, as the browser has sent it."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    return path


def target_of(scope: Scope) -> bytes:
    """Return the path and the query of a request."""
    query: bytes = scope["query_string"]
    return path_of(scope) + (b"?" + query if query else b"")


async def forward(
    connection: Connection,
    scope: Scope,
    receive: Receive,
    send: Send,
    headers: list[tuple[bytes, bytes]],
    answered: Callable[[Headers], list[tuple[bytes, bytes]]],
) -> None:
    """Forward one request, and pass its answer on.

    Args:
        connection: A fresh connection to the server.
        scope: The request.
        receive: Receives its body.
        send: Sends the answer.
        headers: The headers for the server.
        answered: Converts the headers of the answer.

    Raises:
        UnreachableError: There is no proper answer. Nothing was sent to the browser.
    """
    chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])
    exchange = _Exchange(connection, receive, send, answered)
    exchange.complete = not chunked and not any(name == b"content-length" for name, _ in headers)
    if chunked:
        headers = [one for one in headers if one[0] != b"content-length"]
        headers.append((b"transfer-encoding", b"chunked"))
    try:
        request = h11.Request(method=scope["method"], target=target_of(scope), headers=[*headers, (b"connection", b"close")])
        await exchange.run(request)
    except h11.LocalProtocolError as error:
        raise UnreachableError(f"the request cannot be passed on: {error}") from error


class _Exchange:
    """One request and its answer.

    Attributes:
        complete: Whether the request has no more body.
    """

    def __init__(
        self, connection: Connection, receive: Receive, send: Send, answered: Callable[[Headers], list[tuple[bytes, bytes]]]
    ) -> None:
        self._connection = connection
        self._receive = receive
        self._send = send
        self._answered = answered
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD)
        self._begun = False
        self.complete = False

    async def run(self, request: h11.Request) -> None:
        """Send the request, and pass the answer on. It may come before the end of the body."""
        await self._write(self._http.send(request))
        for task in reversed(await first_of(self._send_body(), self._answer())):
            if not task.cancelled():
                task.result()

    async def _send_body(self) -> None:
        """Pass the body on, and return when the browser has left."""
        while not self.complete:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return
            if body := message.get("body", b""):
                await self._write(self._http.send(h11.Data(data=body)))
            self.complete = not message.get("more_body", False)
        await self._write(self._http.send(h11.EndOfMessage()))
        while (await self._receive())["type"] != "http.disconnect":
            continue

    async def _write(self, data: bytes | None) -> None:
        await self._connection.write(data or b"")

    async def _answer(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE) as limit:
                async for event in self._events():
                    if isinstance(event, h11.Response):
                        limit.reschedule(None)
                        headers = self._answered([*event.headers])
                        await self._send({"type": "http.response.start", "status": event.status_code, "headers": headers})
                        self._begun = True
                    elif isinstance(event, h11.Data):
                        await self._send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
        except TimeoutError:
            if not limit.expired():
                raise
            raise UnreachableError(f"the server gave no answer within {_PATIENCE:g} s") from None
        except h11.RemoteProtocolError as error:
            if self._begun:
                return  # the answer stays incomplete, so that it does not seem complete
            raise UnreachableError(f"the server answers with something else than HTTP: {error}") from error
        if not self._begun:
            raise UnreachableError("the server has closed the connection without an answer")
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[Any]:
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._connection.read())
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed) or event is h11.PAUSED:
                return
            else:
                yield event


async def forward_websocket(
    connection: Connection,
    scope: Scope,
    receive: Receive,
    send: Send,
    headers: list[tuple[bytes, bytes]],
    port: int,
    admitted: Callable[[], bool],
) -> None:
    """Forward a WebSocket until one side closes it, or `admitted` says that the browser may send nothing more.

    Raises:
        UnreachableError: The server refuses it. Nothing was sent to the browser.
    """
    subprotocols = [*scope.get("subprotocols", ())]
    uri = parse_uri(f"ws://localhost:{port}{target_of(scope).decode('ascii', 'replace')}")
    protocol = ClientProtocol(uri, subprotocols=subprotocols or None, max_size=MAX_MESSAGE)
    request: HandshakeRequest = protocol.connect()
    for name, value in headers:
        if name not in _HANDSHAKE and name not in (b"host", b"content-length"):
            request.headers[name.decode("latin-1")] = value.decode("latin-1")
    protocol.send_request(request)
    socket = _Socket(connection, protocol, receive, send, admitted)
    await socket.open()
    tasks = await first_of(socket.to_server(), socket.to_browser())
    failed = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    await socket.close()
    if failed and not isinstance(failed[0], CellblockError | WebSocketException | OSError):
        raise failed[0]


class _Socket:
    """A WebSocket between a browser and a server in a session."""

    def __init__(
        self, connection: Connection, protocol: ClientProtocol, receive: Receive, send: Send, admitted: Callable[[], bool]
    ) -> None:
        self._admitted = admitted
        self._connection = connection
        self._protocol = protocol
        self._receive = receive
        self._send = send
        self._parts: list[bytes] = []
        self._text = False

    async def open(self) -> None:
        """Open both sides, if the server agrees."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._flush()
                while self._protocol.state is State.CONNECTING and self._protocol.handshake_exc is None:
                    await self._read()
        except TimeoutError:
            raise UnreachableError(f"the server gave no answer within {_PATIENCE:g} s") from None
        if (error := self._protocol.handshake_exc) is not None:
            raise UnreachableError(f"the server refuses the WebSocket: {error}")
        await self._receive()  # websocket.connect
        await self._send({"type": "websocket.accept", "subprotocol": self._protocol.subprotocol})

    async def _read(self) -> None:
        data = await self._connection.read()
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        await self._flush()

    async def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            await self._connection.write(data)

    async def to_server(self) -> None:
        """Pass the browser's messages on until it leaves."""
        while (message := await self._receive())["type"] == "websocket.receive" and self._admitted():
            if (text := message.get("text")) is not None:
                self._protocol.send_text(text.encode())
            else:
                self._protocol.send_binary(message["bytes"])
            await self._flush()

    async def to_browser(self) -> None:
        """Pass the server's messages on until it closes."""
        while True:
            for event in self._protocol.events_received():
                if isinstance(event, Frame):
                    await self._take(event)
            if self._protocol.state is not State.OPEN:
                return
            await self._read()

    async def _take(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._text = frame.opcode is Opcode.TEXT
        elif frame.opcode is not Opcode.CONT:
            return  # the protocol has answered it
        self._parts.append(bytes(frame.data))
        if not frame.fin:
            return
        data, self._parts = b"".join(self._parts), []
        kind = {"text": data.decode("utf-8", "replace")} if self._text else {"bytes": data}
        await self._send({"type": "websocket.send", **kind})

    async def close(self) -> None:
        """Close both sides, with the server's code if it has closed first."""
        with contextlib.suppress(WebSocketException, CellblockError):
            if self._protocol.state is State.OPEN:
                self._protocol.send_close(1001)
                await self._flush()
        received = self._protocol.close_rcvd
        code = received.code if received is not None and 1000 <= received.code < 5000 and received.code != 1005 else 1000
        with contextlib.suppress(RuntimeError, OSError):  # the browser has left
            await self._send({"type": "websocket.close", "code": code, "reason": "" if received is None else received.reason})
