"""Connections of an asyncio program to sessions: `SessionLink`, and the one to a daemon.

Each request has a connection of its own while it lasts; connections are reused. A slow reader holds up nobody else, and when a
request is given up, its connection is closed, so that the daemon forgets the request.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from socket import socket
from typing import Any, Protocol, TypeVar

from cellblock.errors import BusyError, CellblockError, DaemonError, NotRunError, OutcomeUnknownError
from cellblock.operations.base import AnswerT, Request
from cellblock.service.daemon.async_connection import AsyncConnection, open_connection
from cellblock.service.daemon.place import Place
from cellblock.service.daemon.starting import connect_or_start
from cellblock.wire.packed import Packed

_T = TypeVar("_T")

_IDLE = 64
_MOST = 2000

_TRIES = 3
"""How often a request is made that may be repeated, if each time the daemon ends meanwhile."""


class _LostError(DaemonError):
    """The daemon ended in the middle of a request that may be repeated."""


class SessionLink(Protocol):
    """Asks for operations where the sessions are: in the daemon, or on the nodes of a cluster.

    It belongs to one event loop.
    """

    async def call(self, request: Request[AnswerT], body: bytes = b"") -> AnswerT:
        """Ask for an operation, and return the answer.

        Raises:
            CellblockError: The error at the session, of the same class.
            OutcomeUnknownError: The connection was lost in the middle of a request that must not be made twice.
        """

    async def call_packed(self, request: Request[Any], body: bytes = b"") -> Packed:
        """Ask for an operation of one session as `call` does, and return its answer, JSON data, as it came."""

    def follow(self, request: Request[Any], body: bytes = b"") -> AsyncGenerator[Any, None]:
        """Ask for something that has an answer in many parts, and yield them as they come."""

    async def close(self) -> None:
        """Close all connections that nobody uses. Executions go on."""


class DaemonLink:
    """Asks the daemon, which is started if there is none.

    Args:
        place: Where the daemon is; the user's own by default.
        connect: Connects to something else instead.
        tls: For the daemon of a cluster's node: how both sides prove who they are.
    """

    def __init__(
        self,
        place: Place | None = None,
        connect: Callable[[], Awaitable[socket]] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._connect = connect or functools.partial(asyncio.to_thread, connect_or_start, place or Place())
        self._idle: list[AsyncConnection] = []
        self._used = 0

    async def call(self, request: Request[AnswerT], body: bytes = b"") -> AnswerT:
        """Ask the daemon, or the next one if it has ended or is ending, and return the answer.

        Args:
            request: The request.
            body: The body of the request.

        Raises:
            CellblockError: The daemon's error, of the same class.
            OutcomeUnknownError: It ended in the middle of a request that must not be made twice.
        """
        return await self._repeat(request, lambda connection: connection.call(request, body))

    async def call_packed(self, request: Request[Any], body: bytes = b"") -> Packed:
        """See `SessionLink`."""
        return await self._repeat(request, lambda connection: connection.call_packed(request, body))

    async def _repeat(self, request: Request[Any], ask: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        lost: _LostError | None = None
        for _ in range(_TRIES):
            try:
                return await self._ask(request, ask)
            except _LostError as error:
                lost = error  # twice is the same as once: code that was submitted with a key is found by that key
            except DaemonError as error:
                if lost is None or request.repeatable or isinstance(error, OutcomeUnknownError):
                    raise
                raise OutcomeUnknownError(f"{lost}, and then: {error}") from error
        raise DaemonError(f"{lost}; that has happened {_TRIES} times in a row: see the daemon's log") from lost

    async def _ask(self, request: Request[Any], ask: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        connection = await self._take()
        try:
            answer = await ask(connection)
        except NotRunError:
            self._give(connection)
            if connection.usable:
                raise
            return await self._ask(request, ask)  # the next daemon: this one was not asked
        except CellblockError as error:
            self._give(connection)
            if connection.usable:
                raise
            if request.may_repeat:
                raise _LostError(str(error)) from error
            raise OutcomeUnknownError(f"{error}; it is not known whether {request.op!r} was carried out") from error
        except BaseException:
            self._drop(connection)
            raise
        self._give(connection)
        return answer

    async def follow(self, request: Request[Any], body: bytes = b"") -> AsyncGenerator[Any, None]:
        """Ask for something that has an answer in many parts, and yield them as they come.

        Close the generator if you stop early (`contextlib.aclosing`).
        """
        while True:
            connection = await self._take()
            done = False
            try:
                async with aclosing(connection.follow(request, body)) as parts:
                    async for part in parts:
                        yield part
                done = True
                return
            except CellblockError as error:
                done = True
                if not isinstance(error, NotRunError) or connection.usable:
                    raise
            finally:
                if done:
                    self._give(connection)
                else:
                    self._drop(connection)

    async def close(self) -> None:
        """Close all connections that nobody uses. Executions go on."""
        while self._idle:
            await self._idle.pop().close()

    async def _take(self) -> AsyncConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                self._used += 1
                return connection
        if self._used >= _MOST:
            raise BusyError(f"this process already waits for {_MOST} requests: try again later", 1.0)
        self._used += 1
        try:
            return await open_connection(self._connect, self._tls)
        except BaseException:
            self._used -= 1
            raise

    def _give(self, connection: AsyncConnection) -> None:
        """Keep a connection for the next request."""
        if connection.usable and len(self._idle) < _IDLE:
            self._used -= 1
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: AsyncConnection) -> None:
        self._used -= 1
        connection.abort()
