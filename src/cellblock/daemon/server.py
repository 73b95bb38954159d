"""Serves clients of the daemon: takes requests, asks the named sessions, answers."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from cellblock import __version__
from cellblock.custody.client import Custodian
from cellblock.daemon import checkpoints, files, saving
from cellblock.daemon.codec import decode_request, encode_error, encode_refusal, encode_reply
from cellblock.daemon.messages import (
    MAX_REQUEST,
    PROTOCOL,
    About,
    Allowed,
    Answer,
    Cancel,
    Checkpoints,
    Complete,
    Create,
    Decide,
    Destroy,
    Diff,
    DropCheckpoint,
    End,
    Executions,
    Export,
    Follow,
    Fork,
    Hello,
    History,
    Inspect,
    Install,
    Interrupt,
    List,
    ListFiles,
    Load,
    Lookup,
    MakeCheckpoint,
    Pending,
    ReadFile,
    ReadPart,
    RemoveFile,
    Request,
    Restart,
    Restore,
    Revoke,
    Save,
    Source,
    Status,
    Submit,
    Undo,
    Variables,
    Wipe,
    WriteFile,
    WritePart,
)
from cellblock.daemon.place import peer
from cellblock.daemon.uploads import Uploads
from cellblock.errors import CellblockError, DaemonError, InvalidInputError, ProtocolError, StateError
from cellblock.named.executions import Execution
from cellblock.named.past import PastExecution
from cellblock.named.sessions import NamedSessions
from cellblock.turns import Turns
from cellblock.wire.frames import Frame, FrameParser
from cellblock.wire.packed import Packed, encode_item, pack_items

_log = logging.getLogger("cellblock.daemon")

_AT_ONCE = 256
"""Requests of one client that are worked on at once; more have to wait in its socket."""


class Server:
    """What the clients of one daemon share.

    Attributes:
        sessions: The sessions.
        clients: The connections.
        asked_to_end: Set when a client has asked it to end.
        custodian: Holds the kernels, so that they outlive this process; None if nothing does.
        default_timeout: Seconds that code may run if its client does not say.
        uploads: Files that come in parts.
        turns: What keeps answers to many clients from holding up the loop.
    """

    def __init__(
        self, sessions: NamedSessions, default_timeout: float | None = 60.0, *, custodian: Custodian | None = None
    ) -> None:
        self.sessions = sessions
        self.custodian = custodian
        self.clients: set[Client] = set()
        self.asked_to_end = asyncio.Event()
        self.default_timeout = default_timeout
        self.started = time.time()
        self.uploads = Uploads()
        self.turns = Turns()
        self._ending: set[asyncio.Task[bool]] = set()

    @property
    def ending(self) -> bool:
        """Whether it takes no more requests."""
        return self.asked_to_end.is_set()

    def end_session(self, name: str) -> None:
        """Begin to end a session whose connection is gone."""
        task = asyncio.create_task(self.sessions.destroy(name))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def connect(self) -> Client:
        """Make the protocol for one more client."""
        return Client(self)

    async def answer(self, request: Request, body: bytes) -> Any:
        """Do what a client asks; return JSON data, bytes, or an iterator of parts.

        Raises:
            CellblockError: What is wrong.
        """
        match request:
            case Hello(protocol=protocol, version=version):
                if protocol != PROTOCOL:
                    raise _other_version(version, str(protocol))
                return {"protocol": PROTOCOL, "version": __version__, "pid": os.getpid(), "started": self.started}
            case About():
                return self._about()
            case End(keep=keep):
                if not keep:
                    await self.sessions.wipe()
                self.asked_to_end.set()
                return True
            case Create(name=name, options=options, tags=tags, fresh=fresh, bound=bound):
                made = await self.sessions.create(name, options, tags, fresh=fresh, lasting=not bound)
                return made.shown().to_dict()
            case List(refresh=refresh):
                return await self._listed(refresh)
            case Status(session=session):
                return self.sessions.find(session).shown().to_dict()
            case Restart(session=session):
                return (await self.sessions.restart(session)).to_dict()
            case Destroy(session=session):
                return await self.sessions.destroy(session)
            case Wipe():
                return await self.sessions.wipe()
            case Interrupt(session=session, key=key):
                return await self.sessions.executions.interrupt(self.sessions.find(session), key)
            case Submit() | Follow() | Lookup() | Source() | Executions() | Cancel() | Answer():
                return await self._execution(request, body)
            case Complete() | Inspect() | History():
                return await self._question(request, body.decode("utf-8", "replace"))
            case ListFiles() | ReadFile() | WriteFile() | RemoveFile() | ReadPart() | WritePart():
                return await files.answer((await self.sessions.live(request.session)).files, request, body, self.uploads)
            case Install(session=session, requirements=requirements, timeout=timeout):
                running = await self.sessions.live(session)
                return (await running.install(*requirements, timeout=_seconds(timeout))).to_dict(raw=True)
            case Pending() | Decide() | Allowed() | Revoke():
                return await self._approval(request)
            case MakeCheckpoint() | Checkpoints() | Restore() | DropCheckpoint() | Undo() | Diff() | Fork():
                return await checkpoints.answer(self.sessions, request)
            case Save() | Load() | Export() | Variables():
                return await saving.answer(self.sessions, request)

    async def _listed(self, refresh: bool) -> Packed:
        """Pack the records of all sessions. There can be thousands."""
        items: list[bytes] = []
        for named in self.sessions.all():
            await self.turns.give_way()
            record = await self.sessions.fresh_record(named) if refresh else named.shown()
            items.append(encode_item(record.to_dict()))
        return pack_items(items)

    async def _approval(self, request: Pending | Decide | Allowed | Revoke) -> Any:
        approvals = self.sessions.approvals
        match request:
            case Pending(session=session, withdrawn=withdrawn):
                known = self.sessions.find(session).record.kernel_id if session else None
                return [pending.to_dict() for pending in approvals.waiting(known, withdrawn=withdrawn)]
            case Decide(ids=ids, allow=allow, always=always, by=by):
                return await approvals.decide(ids, allow=allow, always=always, by=by)
            case Allowed(session=session):
                known = self.sessions.find(session).record.kernel_id if session else None
                return [permission.to_dict() for permission in approvals.allowed(known)]
            case Revoke(ids=ids):
                return approvals.revoke(ids)

    def _about(self) -> dict[str, Any]:
        """Say how the daemon is."""
        return {
            "protocol": PROTOCOL,
            "version": __version__,
            "pid": os.getpid(),
            "started": self.started,
            "uptime": time.time() - self.started,
            "custodian": None if self.custodian is None else self.custodian.pid,
            "clients": len(self.clients),
            **self.sessions.about(),
        }

    async def _execution(self, request: Submit | Follow | Lookup | Source | Executions | Cancel | Answer, body: bytes) -> Any:
        match request:
            case Submit():
                submitted = self.submit(request, body)
                if request.follow:
                    return (event.to_dict() async for event in submitted.follow())
                return submitted.record.to_dict()
            case Executions(session=session, count=count):
                await self.turns.give_way()
                return [record.to_dict() for record in self.sessions.executions.last(self.sessions.find(session), count)]
        if isinstance(request, Lookup) and not request.execution:
            return self.sessions.executions.find_key(self.sessions.find(request.session), request.key).record.to_dict()
        named, execution = self.sessions.executions.find(request.execution)
        match request:
            case Follow(after=after):
                return (event.to_dict() async for event in execution.follow(after))
            case Lookup():
                return execution.record.to_dict()
            case Source():
                return execution.code
            case Cancel():
                return await execution.cancel(None if named is None else named.current)
            case Answer(end=end):
                return execution.answer(None if end else body.decode("utf-8", "replace"))

    def submit(self, request: Submit, body: bytes) -> Execution | PastExecution:
        """Have code run; return its execution, or the one that was submitted with its key before.

        Raises:
            CellblockError: What is wrong.
        """
        named = self.sessions.find(request.session)
        if request.retry:
            named.count_attempt()
        execution = Execution(
            named.record.kernel_id,
            named.record.name,
            body.decode("utf-8", "surrogatepass"),
            language=request.language,
            kernel_type=named.record.kernel_type,
            timeout=self.default_timeout if request.timeout == 0 else _seconds(request.timeout),
            key=request.key,
            live=request.live,
            stdin=request.stdin,
            silent=request.silent,
            parent=request.parent,
        )
        return self.sessions.executions.submit(named, execution)

    async def _question(self, request: Complete | Inspect | History, code: str) -> Any:
        session = await self.sessions.live(request.session)
        match request:
            case Complete(cursor=cursor):
                found = await session.complete(code, None if cursor < 0 else cursor)
                return {"matches": found.matches, "start": found.start, "end": found.end}
            case Inspect(cursor=cursor, detail=detail):
                return await session.inspect(code, None if cursor < 0 else cursor, detail=detail)
            case History(count=count):
                return [
                    {"code": entry.code, "status": entry.status, "execution_count": entry.execution_count}
                    for entry in self.sessions.history(request.session, session, count)
                ]


class Client(asyncio.Protocol):
    """One connection: requests in, answers out. What a client has submitted goes on when it leaves."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parser = FrameParser(MAX_REQUEST)
        self._transport: asyncio.Transport | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits = 0
        self._room = asyncio.Event()
        self._room.set()
        self._hello: Hello | None = None
        self._bound: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if peer(transport.get_extra_info("socket")) != os.geteuid():
            _log.warning("a process of another user tried to connect")
            transport.abort()
            return
        self._server.clients.add(self)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        assert self._transport is not None
        try:
            for frame in self._parser.frames(data):
                self._take(frame)
        except ProtocolError as error:
            self._transport.write(encode_error(0, error))
            self._transport.close()

    def _take(self, frame: Frame) -> None:
        assert self._transport is not None
        number, request = decode_request(frame)
        if self._server.ending:
            self._send(encode_refusal(number))
            return
        if isinstance(request, Hello):
            self._hello = request
        elif self._hello is None:
            raise ProtocolError("the first request must be 'hello'")
        elif self._hello.protocol != PROTOCOL and not isinstance(request, End):  # that is the same in all versions
            self._send(encode_error(number, _other_version(self._hello.version, str(self._hello.protocol))))
            return
        if isinstance(request, Submit) and request.wait:
            self._run(number, request, frame.body)
        else:
            self._begin(self._answer(number, request, functools.partial(self._server.answer, request, frame.body)))
        if self._busy:
            self._transport.pause_reading()

    @property
    def _busy(self) -> bool:
        return len(self._tasks) + self._waits >= _AT_ONCE

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._read_on()

    def _read_on(self) -> None:
        if self._transport is not None and not self._busy:
            self._transport.resume_reading()

    def _run(self, number: int, request: Submit, body: bytes) -> None:
        """Run code, and answer when it has ended. There is no task for this: most requests are of this kind."""
        try:
            submitted = self._server.submit(request, body)
        except Exception as error:
            self._send(self._failure(number, request, error))
            return
        if isinstance(submitted, PastExecution):
            self._begin(self._answer(number, request, functools.partial(_result, submitted)))
        else:
            self._waits += 1
            submitted.when_settled(lambda: self._answer_result(number, submitted))

    def _answer_result(self, number: int, execution: Execution) -> None:
        self._waits -= 1
        self._read_on()
        if execution.packed is not None:
            self._send(encode_reply(number, execution.packed))
        else:
            self._send(encode_error(number, execution.failed or CellblockError("it has no result")))

    async def _answer(self, number: int, request: Request, work: Callable[[], Awaitable[Any]]) -> None:
        try:
            self._bind(request)
            answer = await work()
            if isinstance(answer, AsyncIterator):
                await self._answer_in_parts(number, answer)
            else:
                await self._write(encode_reply(number, answer))
        except Exception as error:
            await self._write(self._failure(number, request, error))

    def _failure(self, number: int, request: Request, error: Exception) -> bytes:
        """Return the answer for a request that has failed."""
        if self._server.ending and isinstance(error, StateError) and not isinstance(request, Submit):
            return encode_refusal(number)  # its session has ended because the daemon does
        if isinstance(error, CellblockError):
            if isinstance(request, Create):
                self._bound.discard(request.name)
            return encode_error(number, error)
        _log.error("the request %r failed", request.op, exc_info=error)
        return encode_error(number, DaemonError(f"the daemon failed: {error!r}; see its log"))

    def _bind(self, request: Request) -> None:
        """Take note of a session that is to end with this connection, before it is made.

        Raises:
            InvalidInputError: It could be a session of somebody else.
        """
        if isinstance(request, Create) and request.bound:
            if not (request.name and request.fresh):
                raise InvalidInputError("a session that ends with its connection must be fresh, and have a name")
            if request.name not in self._bound:
                self._bound.add(request.name)

    async def _answer_in_parts(self, number: int, parts: AsyncIterator[Any]) -> None:
        """Send parts as they come, and then that there are no more. Many clients can follow a flood of them."""
        async for part in parts:
            await self._server.turns.give_way()
            await self._write(encode_reply(number, part, more=True))
        await self._write(encode_reply(number, None))

    def _send(self, data: bytes) -> None:
        """Write now if there is room, else when there is."""
        if self._room.is_set():
            if self._transport is not None and not self._transport.is_closing():
                self._transport.write(data)
        else:
            self._begin(self._write(data))

    async def _write(self, data: bytes) -> None:
        await self._room.wait()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._room.clear()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._server.clients.discard(self)
        self._room.set()
        for task in self._tasks:
            task.cancel()
        for name in self._bound:
            self._server.end_session(name)


async def _result(execution: PastExecution) -> dict[str, Any]:
    return (await execution.wait()).to_dict(raw=True)


def _other_version(version: str, protocol: str) -> DaemonError:
    return DaemonError(
        f"the daemon is cellblock {__version__} (protocol {PROTOCOL}) and this client {version} ({protocol}): "
        "'cellblock daemon stop' ends it and its sessions, and the next command starts a new one"
    )


def _seconds(milliseconds: int) -> float | None:
    return None if milliseconds < 0 else milliseconds / 1000
