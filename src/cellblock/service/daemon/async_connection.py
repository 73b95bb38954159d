"""A client's connection to the daemon, for asyncio, with many concurrent requests."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Self, cast

from cellblock.common.version import __version__
from cellblock.errors import CellblockError, DaemonError, NotRunError, ProtocolError
from cellblock.operations.base import PROTOCOL, AnswerT, Request
from cellblock.operations.sessions import Hello
from cellblock.service.daemon.codec import MAX_REPLY, REFUSED, UNREADABLE, decode_answer, encode_request, unreadable
from cellblock.service.daemon.daemon_connection import ANSWER, silent
from cellblock.service.daemon.place import credentials
from cellblock.service.daemon.tls import NAME
from cellblock.wire.frames import FrameParser
from cellblock.wire.packed import Packed, unpack

_WAITING = 1000
"""Parts of one answer that may wait for their reader; then the daemon has to wait."""


_TRIES = 5


async def open_connection(
    connect: Callable[[], Awaitable[socket.socket]], tls: ssl.SSLContext | None = None
) -> AsyncConnection:
    """Open a connection to a daemon. If a daemon is just ending, wait for its end.

    Args:
        connect: Connects to the running daemon or a new one.
        tls: The TLS settings for the daemon of a cluster node.

    Raises:
        DaemonError: The daemon cannot be reached or started, or has another version.
    """
    for _ in range(_TRIES):
        with suppress(NotRunError):
            return await AsyncConnection.open(await connect(), __version__, tls)
    raise DaemonError("the daemon ended right after it started; see its log")


class AsyncConnection(asyncio.Protocol):
    """A connection to a daemon, shared by any number of tasks of one event loop.

    Attributes:
        daemon: The daemon's description of itself: ``protocol``, ``version``, ``pid``, ``started``.
    """

    def __init__(self) -> None:
        self.daemon: dict[str, Any] = {}
        self._transport: asyncio.Transport | None = None
        self._parser = FrameParser(MAX_REPLY)
        self._number = 0
        self._answers: dict[int, asyncio.Queue[tuple[Any, bool]]] = {}
        self._lost: DaemonError | None = None
        self._ending = False
        self._watched: select.poll | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._gone = asyncio.Event()

    @classmethod
    async def open(cls, sock: socket.socket, version: str, tls: ssl.SSLContext | None = None) -> Self:
        """Open a connection and introduce this client.

        Args:
            sock: The connected socket, which the connection owns.
            version: The version of this client's cellblock.
            tls: The TLS settings for a TCP socket.

        Raises:
            NotRunError: The daemon has ended meanwhile.
            DaemonError: The daemon has another version, or cannot prove that it belongs to the cluster.
        """
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        if tls is None:
            _, made = await loop.create_unix_connection(cls, sock=sock)
        else:
            try:
                _, made = await loop.create_connection(cls, sock=sock, ssl=tls, server_hostname=NAME)
            except (ConnectionError, EOFError) as error:
                raise NotRunError(f"the daemon ended before the request: {error}") from error
            except OSError as error:  # an SSLError, for instance
                raise DaemonError(f"the daemon cannot prove that it belongs to the cluster: {error}") from error
        try:
            async with asyncio.timeout(ANSWER):
                made.daemon = await made.call(Hello(PROTOCOL, version))
        except TimeoutError:
            pid = credentials(sock)[0] if tls is None else None
            made.abort()
            raise DaemonError(silent(pid, ANSWER)) from None
        except BaseException as error:  # also a cancellation: the caller never gets the connection, and cannot close it
            lost = not made.usable  # an error answer leaves the connection open
            made.abort()
            if lost and isinstance(error, DaemonError):
                raise NotRunError(str(error)) from error
            raise
        return made

    @property
    def usable(self) -> bool:
        """Whether the daemon still accepts requests."""
        return self._lost is None and not self._ending

    async def close(self) -> None:
        """Close the connection. Executions continue."""
        self.abort()
        await self._gone.wait()

    def abort(self) -> None:
        """Close the connection without waiting until it is closed."""
        self._lose(DaemonError("the connection to the daemon is closed"))
        if self._transport is not None:
            self._transport.abort()

    async def call(self, request: Request[AnswerT], body: bytes = b"") -> AnswerT:
        """Send a request, and return the answer: JSON data, or bytes.

        Args:
            request: The request.
            body: The body of the request.

        Raises:
            CellblockError: The daemon's error, of the same class.
            NotRunError: The daemon had ended or was ending, so the request was not sent. The connection is no longer
                `usable`.
            DaemonError: The daemon ended meanwhile; whether it handled the request is unknown.
        """
        answer: AnswerT = self._unpacked(await self.call_packed(request, body))
        return answer

    async def call_packed(self, request: Request[Any], body: bytes = b"") -> Packed:
        """Send a request as `call` does, and return an answer of JSON data without unpacking it."""
        number, answers = await self._send(request, body)
        try:
            answer, _ = await answers.get()
        finally:
            del self._answers[number]
        self._check(answer)
        packed: Packed = answer
        return packed

    async def follow(self, request: Request[Any], body: bytes = b"") -> AsyncGenerator[Any, None]:
        """Send a request that has many answers, and yield them as they arrive.

        Close the generator if you stop early (`contextlib.aclosing`).
        """
        number, answers = await self._send(request, body)
        try:
            more = True
            while more:
                answer, more = await answers.get()
                self._may_read()
                self._check(answer)
                if more:
                    yield self._unpacked(answer)
        finally:
            del self._answers[number]
            self._may_read()

    def _check(self, answer: Any) -> None:
        """Raise the error in an answer, if it is one."""
        if answer is REFUSED:
            self._ending = True
            raise NotRunError("the daemon was shutting down, and the request was not sent")
        if isinstance(answer, CellblockError):
            raise answer

    def _unpacked(self, answer: Any) -> Any:
        if not isinstance(answer, Packed):
            return answer
        try:
            return unpack(answer)
        except ProtocolError as error:
            raise self._end(error) from None

    async def _send(self, request: Request[Any], body: bytes) -> tuple[int, asyncio.Queue[tuple[Any, bool]]]:
        self._number = number = self._number + 1
        data = encode_request(number, request, body)
        answers = self._answers[number] = asyncio.Queue()
        try:
            await self._room.wait()
            if self._lost is not None or self._transport is None or self._hung_up:
                self._ending = True  # even before the event loop notices: the next request needs another connection
                raise NotRunError("the daemon ended before the request was sent")
            self._transport.write(data)
        except BaseException:  # also a cancellation while waiting for room to write
            del self._answers[number]
            raise
        return number, answers

    @property
    def _hung_up(self) -> bool:
        """Whether the daemon has closed the connection, even before the event loop notices."""
        return self._watched is not None and bool(self._watched.poll(0))

    def _may_read(self) -> None:
        if self._transport is not None and all(answers.qsize() < _WAITING for answers in self._answers.values()):
            self._transport.resume_reading()

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's do not derive from it
        if hasattr(select, "POLLRDHUP"):
            self._watched = select.poll()
            self._watched.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._parser.frames(data):
                number, answer, more = decode_answer(frame)
                if number == UNREADABLE:
                    self._lose(unreadable(answer))
                answers = self._answers.get(number)
                if answers is None:
                    continue  # the caller has given up
                answers.put_nowait((answer, more))
                if answers.qsize() >= _WAITING and self._transport is not None:
                    self._transport.pause_reading()
        except (ProtocolError, ValueError) as error:
            self._end(error)

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        why = "it has ended" if exc is None else os.strerror(exc.errno or 0) if isinstance(exc, OSError) else str(exc)
        self._lose(DaemonError(f"the connection to the daemon was lost: {why}"))
        self._gone.set()

    def _end(self, error: ProtocolError | ValueError) -> DaemonError:
        """Close the connection after a protocol violation; return the error."""
        violated = DaemonError(f"the daemon violated the protocol: {error}")
        self._lose(violated)
        self.abort()
        return violated

    def _lose(self, error: DaemonError) -> None:
        if self._lost is None:
            self._lost = error
            self._room.set()
            for answers in self._answers.values():
                answers.put_nowait((error, False))
