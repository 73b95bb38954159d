"""What the daemon does for its clients: asks the named sessions, and returns what to answer."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from typing import Any, Protocol

from cellblock import __version__
from cellblock.custody.client import Custodian
from cellblock.daemon import checkpoints, files, saving
from cellblock.daemon.messages import (
    PROTOCOL,
    About,
    Adopt,
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
from cellblock.daemon.uploads import Uploads
from cellblock.errors import (
    CheckpointError,
    DaemonError,
    InvalidInputError,
    KernelDiedError,
    LaunchError,
    ProtocolError,
    StateError,
)
from cellblock.model.sessions import OWN_KERNEL
from cellblock.named.executions import Execution
from cellblock.named.past import PastExecution
from cellblock.named.sessions import NamedSessions
from cellblock.turns import Turns
from cellblock.wire.packed import Packed, encode_item, pack_items

_BY_ENDING = (KernelDiedError, LaunchError, CheckpointError, ProtocolError)
"""What those meet who use a session while another client ends it."""


class Connected(Protocol):
    """A client's connection."""

    def abort(self) -> None:
        """End it."""


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
        self.clients: set[Connected] = set()
        self.asked_to_end = asyncio.Event()
        self.default_timeout = default_timeout
        self.started = time.time()
        self._began = time.monotonic()
        self.uploads = Uploads()
        self.turns = Turns()
        self._ending: set[asyncio.Task[bool]] = set()

    @property
    def ending(self) -> bool:
        """Whether it takes no more requests."""
        return self.asked_to_end.is_set()

    def end_session(self, name: str) -> None:
        """Begin to end a session whose connection is closed."""
        task = asyncio.create_task(self.sessions.destroy(name))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def answer(self, request: Request, body: bytes) -> Any:
        """Do what a client asks; return JSON data, bytes, or an iterator of parts.

        Raises:
            CellblockError: What is wrong.
        """
        named = self.sessions.known(getattr(request, "session", ""))
        try:
            return await self._answer(request, body)
        except _BY_ENDING as error:
            if named is None or not named.ended:
                raise
            raise StateError(f"session {named.record.name!r} was ended before {request.op!r} was done") from error

    async def _answer(self, request: Request, body: bytes) -> Any:
        match request:
            case Hello(protocol=protocol, version=version):
                if protocol != PROTOCOL:
                    raise other_version(version, str(protocol))
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
            case MakeCheckpoint() | Checkpoints() | Restore() | DropCheckpoint() | Undo() | Diff() | Fork() | Adopt():
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
            case Decide(ids=ids, allow=allow, always=always, by=by, answer=answer):
                return await approvals.decide(ids, allow=allow, always=always, by=by, answer=answer)
            case Allowed(session=session):
                known = self.sessions.find(session).record.kernel_id if session else None
                return [permission.to_dict() for permission in approvals.allowed(known)]
            case Revoke(ids=ids):
                return approvals.revoke(ids)

    def _about(self) -> dict[str, Any]:
        """Return the status of the daemon."""
        return {
            "protocol": PROTOCOL,
            "version": __version__,
            "pid": os.getpid(),
            "started": self.started,
            "uptime": time.monotonic() - self._began,
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
            case Follow(after=after, answers=answers):
                return _events(execution, after, answers=answers)
            case Lookup():
                return execution.record.to_dict()
            case Source():
                return execution.code
            case Cancel():
                return await execution.cancel(None if named is None else named.current)
            case Answer(end=end):
                if isinstance(execution, PastExecution):
                    return False  # it does not ask any more
                return execution.stdin.answer(None if end else body.decode("utf-8", "replace"))

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
            _code(body),
            language=request.language,
            kernel_type=OWN_KERNEL if request.own else named.record.kernel_type,
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


async def _events(execution: Execution | PastExecution, after: int, *, answers: bool) -> AsyncGenerator[dict[str, Any], None]:
    """Yield events for a client, and count it among those that answer `input()`, if it does."""
    asked = execution if answers and isinstance(execution, Execution) else None
    if asked is not None:
        asked.stdin.add_reader()
    try:
        async for event in execution.follow(after):
            yield event.to_dict()
    finally:
        if asked is not None:
            asked.stdin.remove_reader()


def _code(body: bytes) -> str:
    try:
        return body.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"the code is not UTF-8: {error.reason} at byte {error.start}") from None


def _seconds(milliseconds: int) -> float | None:
    return None if milliseconds < 0 else milliseconds / 1000


def other_version(version: str, protocol: str) -> DaemonError:
    """Return the error for a client of another version."""
    return DaemonError(
        f"the daemon is cellblock {__version__} (protocol {PROTOCOL}) and this client {version} ({protocol}): "
        "'cellblock daemon stop' ends it and its sessions, and the next command starts a new one"
    )
