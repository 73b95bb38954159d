"""Connections of an asyncio program to sessions: `SessionLink`, and the link to a daemon.

Each request has its own connection while it lasts; connections are reused. A slow reader delays no other request. Giving up
a request closes its connection, so that the daemon drops the request.
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
    """A link to where the sessions are: the daemon, or the nodes of a cluster.

    It belongs to one event loop.
    """

    async def call(self, request: Request[AnswerT], body: bytes = b"") -> AnswerT:
        """Run an operation, and return its answer.

        Raises:
            CellblockError: The error at the session, of the same class.
            OutcomeUnknownError: The connection was lost in the middle of a request that must not be repeated.
        """

    async def call_packed(self, request: Request[Any], body: bytes = b"") -> Packed:
        """Run an operation of one session as `call` does, and return its JSON answer without unpacking it."""

    def follow(self, request: Request[Any], body: bytes = b"") -> AsyncGenerator[Any, None]:
        """Send a request that has many answers, and yield them as they arrive."""

    async def close(self) -> None:
        """Close all unused connections. Executions continue."""


class DaemonLink:
    """A link to the daemon, which is started if none is running.

    Args:
        place: The daemon's directory; the user's own by default.
        connect: Replaces the connection to the daemon.
        tls: The TLS settings for the daemon of a cluster node.
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
        """Send a request to the daemon, or to the next one if it has ended or is ending. Return the answer.

        Args:
            request: The request.
            body: The body of the request.

        Raises:
            CellblockError: The daemon's error, of the same class.
            OutcomeUnknownError: The daemon ended in the middle of a request that must not be repeated.
        """
        return await self._repeat(request, lambda connection: connection.call(request, body))

    async def call_packed(self, request: Request[Any], body: bytes = b"") -> Packed:
        return await self._repeat(request, lambda connection: connection.call_packed(request, body))

    async def _repeat(self, request: Request[Any], ask: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        lost: _LostError | None = None
        for _ in range(_TRIES):
            try:
                return await self._ask(request, ask)
            except _LostError as error:
                lost = error  # the operation is idempotent: code submitted with a key is found by that key
            except DaemonError as error:
                if lost is None or request.repeatable or isinstance(error, OutcomeUnknownError):
                    raise
                raise OutcomeUnknownError(f"{lost}, and then: {error}") from error
        raise DaemonError(f"{lost}; this happened {_TRIES} times in a row: see the daemon's log") from lost

    async def _ask(self, request: Request[Any], ask: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        connection = await self._take()
        try:
            answer = await ask(connection)
        except NotRunError:
            self._give(connection)
            if connection.usable:
                raise
            return await self._ask(request, ask)  # the next daemon: the request did not reach this one
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
        """Send a request that has many answers, and yield them as they arrive.

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
        """Close all unused connections. Executions continue."""
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
        """Store a connection for reuse."""
        if connection.usable and len(self._idle) < _IDLE:
            self._used -= 1
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: AsyncConnection) -> None:
        self._used -= 1
        connection.abort()
