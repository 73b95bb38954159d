"""The daemon's side of a client's connection: reads requests from the socket and writes the answers."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, nullcontext
from typing import Any

from cellblock.common import telemetry
from cellblock.errors import CellblockError, DaemonError, InvalidInputError, LaunchError, ProtocolError, StateError
from cellblock.operations.base import MAX_REQUEST, PROTOCOL, Request
from cellblock.operations.executions import Lookup, Source, Submit
from cellblock.operations.files import ListFiles, ReadFile, ReadPart
from cellblock.operations.programs import Spawn
from cellblock.operations.sessions import Create, End, Hello
from cellblock.service.daemon.answering import answer
from cellblock.service.daemon.codec import PIECE, UNREADABLE, decode_request, encode_error, encode_refusal, encode_reply
from cellblock.service.daemon.daemon_state import Bound, Server, other_version
from cellblock.service.daemon.execution_handlers import submit
from cellblock.service.daemon.handover import ASK_AGAIN
from cellblock.service.daemon.lease import Lease
from cellblock.service.daemon.place import peer
from cellblock.service.named.ended_executions import EndedExecution
from cellblock.service.named.executions import Execution
from cellblock.wire.frames import Frame, FrameParser

_log = logging.getLogger("cellblock.daemon")

_AT_ONCE = 256
"""Requests of one client that are worked on at once; more have to wait in its socket. Their bodies together have no more bytes
than the largest request, or there is one alone."""

_LARGE = (ListFiles, Lookup, ReadFile, ReadPart, Source)
"""Requests with answers that can be large and are made at once. One client's requests are answered in order: a client
that does not read its answers must not fill the memory with them."""


class Client(asyncio.Protocol):
    """A connection: requests in, answers out. Submitted executions continue after the client leaves."""

    def __init__(self, server: Server, lease: Lease | None = None) -> None:
        """Serve a client.

        Args:
            server: The state shared by all clients.
            lease: The lease of a cluster node, for a client that has authenticated. Once the lease expires, nothing is read
                from or sent to the client. None for a process of this machine, which must belong to this user.
        """
        self._server = server
        self._lease = lease
        self._parser = FrameParser(MAX_REQUEST)
        self._transport: asyncio.Transport | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits = 0
        self._frames: deque[Frame] = deque()
        """Frames that were read together with requests in progress, and have to wait."""
        self._mistake: ProtocolError | None = None
        """Why the bytes after those cannot be read."""
        self._bytes = 0
        self._large = asyncio.Lock()
        self._room = asyncio.Event()
        self._room.set()
        self._writing = asyncio.Lock()
        self._hello: Hello | None = None
        self._deciding = False
        self._bound = Bound(set(), [])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._lease is None and peer(transport.get_extra_info("socket")) != os.geteuid():
            _log.warning("a process of another user tried to connect")
            transport.abort()
            return
        self._server.clients[transport] = self._bound

    def data_received(self, data: bytes) -> None:
        try:
            self._frames.extend(self._parser.frames(data))
        except ProtocolError as error:
            self._mistake = error
        self._go_on()

    def _go_on(self) -> None:
        """Read requests up to the concurrency limits, and continue when requests end."""
        if self._transport is None or self._transport.is_closing() or self._fenced:
            return
        try:
            while self._frames and not self._busy:
                self._take(self._frames.popleft())
            if self._mistake is not None and not self._frames:
                raise self._mistake
        except ProtocolError as error:
            self._frames.clear()
            self._transport.write(encode_error(UNREADABLE, error))
            self._transport.close()
            return
        if self._busy:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _take(self, frame: Frame) -> None:
        assert self._transport is not None
        number, request, body = decode_request(frame)
        trace = frame.header.get("trace")
        if self._server.ending:
            self._send(encode_refusal(number))
        elif isinstance(request, (Hello, Create)) and self._server.handover is not None and self._server.handover.replaced:
            self._begin(self._take_unless_replaced(number, request, body, trace))
        else:
            self._accept(number, request, body, trace)

    async def _take_unless_replaced(self, number: int, request: Request[Any], body: bytes, trace: object) -> None:
        """Read a request, unless a daemon of a new installation will take over."""
        self._deciding = True
        try:
            if await self._server.hand_over(ASK_AGAIN):
                self._send(encode_refusal(number))
            else:
                self._accept(number, request, body, trace)
        except ProtocolError as error:
            self._mistake = error
        finally:
            self._deciding = False

    def _accept(self, number: int, request: Request[Any], body: bytes, trace: object) -> None:
        if isinstance(request, Hello):
            self._hello = request
        elif self._hello is None:
            raise ProtocolError("the first request must be 'hello'")
        elif self._hello.protocol != PROTOCOL and not isinstance(request, End):  # the same in all versions
            self._send(encode_error(number, other_version(self._hello.version, str(self._hello.protocol))))
            return
        with telemetry.incoming(trace):  # tasks that start here continue the client's trace
            if isinstance(request, Submit) and request.wait:
                self._run(number, request, body)
            else:
                work = functools.partial(answer, self._server, request, body)
                self._begin(self._answer(number, request, work), len(body))

    @property
    def _fenced(self) -> bool:
        """Close the connection if the lease has expired, because other nodes may have sessions of the same names.

        Return whether it has.
        """
        if self._lease is None or self._lease.valid:
            return False
        self._frames.clear()
        if self._transport is not None:
            self._transport.abort()
        return True

    @property
    def _busy(self) -> bool:
        return self._deciding or len(self._tasks) + self._waits >= _AT_ONCE or self._bytes >= MAX_REQUEST

    def _begin(self, work: Coroutine[Any, Any, None], size: int = 0) -> None:
        """Start a coroutine that uses `size` bytes of a request."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        self._bytes += size
        task.add_done_callback(functools.partial(self._done, size=size))

    def _done(self, task: asyncio.Task[None], size: int) -> None:
        self._tasks.discard(task)
        self._bytes -= size
        self._go_on()

    def _run(self, number: int, request: Submit, body: bytes) -> None:
        """Run code, and send the result. No task is used, because most requests are of this kind."""
        try:
            submitted = submit(self._server, request, body)
        except Exception as error:
            self._send(self._failure(number, request, error))
            return
        if isinstance(submitted, EndedExecution):
            self._begin(self._answer(number, request, functools.partial(_result, submitted)))
        else:
            self._waits += 1
            submitted.when_settled(functools.partial(self._answer_result, number, submitted))

    def _answer_result(self, number: int, execution: Execution) -> None:
        self._waits -= 1
        self._go_on()
        if execution.packed is not None:
            self._send(*encode_reply(number, execution.packed))
        else:
            self._send(encode_error(number, execution.failed or CellblockError("it has no result")))

    async def _answer(self, number: int, request: Request[Any], work: Callable[[], Awaitable[Any]]) -> None:
        once = not request.may_repeat and not isinstance(request, Submit)
        self._server.once += once
        try:
            self._bind(request)
            async with self._large if isinstance(request, _LARGE) else nullcontext():
                found = await work()
                if isinstance(request, Spawn) and request.bound:
                    self._bound.programs.append((request.session, found))
                if isinstance(found, AsyncGenerator):
                    await self._answer_in_parts(number, found)
                else:
                    await self._write(*encode_reply(number, found))
        except Exception as error:
            await self._write(self._failure(number, request, error))
        finally:
            self._server.once -= once

    def _failure(self, number: int, request: Request[Any], error: Exception) -> bytes:
        """Return the answer for a failed request."""
        if self._server.ending and isinstance(error, StateError) and not isinstance(request, Submit):
            return encode_refusal(number)  # its session ended because the daemon is ending
        if isinstance(error, CellblockError):
            if isinstance(request, Create):
                self._bound.sessions.discard(request.name)
            if isinstance(error, LaunchError) and self._server.handover is not None and self._server.handover.problem:
                error = LaunchError(f"no kernel can be started: {self._server.handover.problem}")
            return encode_error(number, error)
        _log.error("the request %r failed", request.op, exc_info=error)
        return encode_error(number, DaemonError(f"the daemon failed: {error!r}; see its log"))

    def _bind(self, request: Request[Any]) -> None:
        """Register a session that ends with this connection, before it is created.

        Raises:
            InvalidInputError: The session could be another client's.
        """
        if isinstance(request, Create) and request.bound:
            if not (request.name and request.fresh):
                raise InvalidInputError("a session that ends with its connection must be new and have a name")
            self._bound.sessions.add(request.name)

    async def _answer_in_parts(self, number: int, parts: AsyncGenerator[Any, None]) -> None:
        """Send parts as they arrive, then the end mark. Many clients can follow fast output."""
        async with aclosing(parts):
            async for part in parts:
                await self._server.turns.give_way()
                await self._write(*encode_reply(number, part, more=True))
        await self._write(*encode_reply(number, None))

    def _send(self, frame: bytes, body: bytes = b"") -> None:
        """Write now if there is room, or later."""
        if self._room.is_set() and not self._writing.locked() and not body:
            self._put(frame)
        else:
            self._begin(self._write(frame, body))

    async def _write(self, frame: bytes, body: bytes = b"") -> None:
        """Write a frame, or the start of one and its body, piece by piece. No other frame comes in between."""
        async with self._writing:
            await self._room.wait()
            self._put(frame)
            whole = memoryview(body)
            for start in range(0, len(body), PIECE):
                await self._server.turns.give_way()
                await self._room.wait()
                self._put(whole[start : start + PIECE])

    def _put(self, data: bytes | memoryview) -> None:
        if self._transport is not None and not self._transport.is_closing() and not self._fenced:
            self._transport.write(data)

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._server.clients.pop(self._transport, None)
        self._room.set()
        for task in self._tasks:
            task.cancel()
        for name in self._bound.sessions:
            self._server.end_session(name)
        for session, process in self._bound.programs:
            self._server.end_program(session, process)


async def _result(execution: EndedExecution) -> dict[str, Any]:
    return (await execution.wait()).to_dict(raw=True)
