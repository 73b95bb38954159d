"""Executions: what runs in named sessions, whether or not its client is still there."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cellblock.approvals.request import ApprovalRequest
from cellblock.errors import CellblockError, LaunchError, StateError
from cellblock.host.kernels.cell import Cleared, Notice, Prompt
from cellblock.model import CodeExecutionChunk, CodeExecutionResult, OutputItem
from cellblock.model.sessions import EventKind, ExecutionEvent, ExecutionRecord, Language, PendingApproval
from cellblock.wire.messages import Comm

if TYPE_CHECKING:
    from cellblock.host import Session
    from cellblock.named.approvals import PendingApprovals

MAX_EVENTS = 10_000
MAX_EVENT_BYTES = 16 * 1024 * 1024
"""How much is kept of the events of one execution: the last ones. The result has the rest, within `Limits`."""


class Execution:
    """One execution, and what happens in it.

    Attributes:
        record: How far it is.
        code: Its code.
        result: Its result, once it has ended; None if it `failed`.
        failed: What cellblock met instead of running it to its end.
    """

    def __init__(
        self,
        session: str,
        session_name: str,
        code: str,
        *,
        language: Language = "python",
        timeout: float | None = None,
        key: str = "",
        live: bool = False,
        stdin: bool = False,
        silent: bool = False,
        parent: str = "",
    ) -> None:
        """Describe an execution.

        Args:
            session: The id of its session.
            session_name: Its name.
            code: The code.
            language: ``bash`` runs it by ``%%bash``.
            timeout: Seconds that it may run; None for no limit.
            key: The idempotency key that it was submitted with.
            live: Whether output becomes events.
            stdin: Whether somebody will answer `input()`.
            silent: Whether it leaves no trace in the session.
            parent: The id of the Jupyter message that asks for it, if one does.
        """
        self.record = ExecutionRecord(secrets.token_hex(16), session, submitted=time.time(), key=key)
        self.code = f"%%bash\n{code}" if language == "bash" else code
        self.result: CodeExecutionResult | None = None
        self.failed: CellblockError | None = None
        self._session_name = session_name
        self._timeout = timeout
        self._live, self._stdin, self._silent, self._parent = live, stdin, silent, parent
        self._events: dict[int, tuple[ExecutionEvent, int]] = {}
        self._size = 0
        self._seq = 0
        self._dropped = 0
        self._changed = asyncio.Event()
        self._line: asyncio.Future[str | None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether it has ended, or never will."""
        return self.record.state in ("done", "unknown")

    def start(self, session: Session, turn: asyncio.Lock, approvals: PendingApprovals, *, auto: bool) -> asyncio.Task[None]:
        """Have it run when it is its turn.

        Args:
            session: Where.
            turn: Held by the execution that runs there.
            approvals: Where its approval requests wait.
            auto: Whether they are allowed at once instead.
        """
        self._task = asyncio.create_task(self._run_in_turn(session, turn, approvals, auto))
        return self._task

    async def _run_in_turn(self, session: Session, turn: asyncio.Lock, approvals: PendingApprovals, auto: bool) -> None:
        try:
            async with turn:
                self.record = replace(self.record, state="running", begun=time.time())
                self.add("begun", {"execution_count": session.next_count})
                await self._run(session, approvals, auto)
        except CellblockError as error:
            self._fail(error, "no" if isinstance(error, LaunchError | StateError) else "unknown")
        except asyncio.CancelledError:
            ran = "no" if self.record.begun is None else "unknown"
            self._fail(StateError("it was cancelled, or its session was closed"), ran)
            raise
        finally:
            if not self.ended:
                self._fail(CellblockError("cellblock failed; see the daemon's log"), "unknown")

    async def _run(self, session: Session, approvals: PendingApprovals, auto: bool) -> None:
        events = session.stream(
            self.code,
            timeout=self._timeout,
            chunks=self._live,
            rich=self._live,
            silent=self._silent,
            parent=self._parent,
            on_input=self._ask if self._stdin else None,
        )
        async with aclosing(events):
            async for event in events:
                await self._take(event, approvals, auto)

    async def _take(self, event: object, approvals: PendingApprovals, auto: bool) -> None:
        match event:
            case CodeExecutionChunk(text=text, name=name):
                self.add("stream", {"name": name or "stdout", "text": text}, len(text))
            case OutputItem():
                data = event.to_dict(raw=True)
                self.add("display", data, sum(map(len, data["data"].values())))
            case Comm(kind=kind, content=content, buffers=buffers):
                size = len(content) + sum(map(len, buffers))
                self.add("comm", {"kind": kind, "content": content, "buffers": [*buffers]}, size)
            case Cleared(wait=wait):
                self.add("clear", {"wait": wait})
            case Notice(about=ApprovalRequest() as request):
                await self._decide(request, approvals, auto)
            case CodeExecutionResult():
                self._end(event)

    async def _decide(self, request: ApprovalRequest, approvals: PendingApprovals, auto: bool) -> None:
        if auto:
            await request.accept()
            return
        pending = PendingApproval(
            id=request.id,
            session=self.record.session,
            session_name=self._session_name,
            execution=self.record.id,
            kind=request.kind,
            server=request.server_name,
            tool=request.tool_name,
            arguments=request.tool_args,
            text=str(request),
        )
        approvals.add(pending, request, lambda state: self.add("decided", {"id": request.id, "state": state}))
        self.add("approval", pending.to_dict(), len(pending.text))

    async def _ask(self, prompt: Prompt) -> str | None:
        self._line = asyncio.get_running_loop().create_future()
        self.add("input", {"prompt": str(prompt), "password": prompt.password})
        try:
            return await self._line
        finally:
            self._line = None

    def answer(self, line: str | None) -> bool:
        """Answer `input()`, or say by None that there are no more lines; return whether it had asked."""
        if self._line is None or self._line.done():
            return False
        self._line.set_result(line)
        return True

    def _end(self, result: CodeExecutionResult) -> None:
        self.result = result
        self.record = replace(self.record, state="done", ended=time.time())
        self.add("result", {})

    def _fail(self, error: CellblockError, ran: str) -> None:
        self.failed = error
        self.record = replace(self.record, state="unknown" if ran == "unknown" else "done", ended=time.time())
        self.add("failed", {"error": type(error).__name__, "message": str(error), "ran": ran})

    # -- events --------------------------------------------------------------------------------------------------------

    def add(self, kind: EventKind, data: Mapping[str, Any], size: int = 0) -> None:
        """Add an event. The oldest are dropped if there are too many."""
        self._seq += 1
        self._events[self._seq] = (ExecutionEvent(self._seq, kind, data), size)
        self._size += size
        while len(self._events) > MAX_EVENTS or (self._size > MAX_EVENT_BYTES and len(self._events) > 1):
            self._dropped += 1
            self._size -= self._events.pop(self._dropped)[1]
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait(self) -> CodeExecutionResult:
        """Wait for its end, and return its result.

        Raises:
            CellblockError: It failed.
        """
        while not self.ended:
            await self._changed.wait()
        if self.result is None:
            raise self.failed or CellblockError("it has no result")
        return self.result

    async def follow(self, after: int = 0) -> AsyncGenerator[ExecutionEvent, None]:
        """Yield its events as they come, until the last.

        Args:
            after: The number of the last event that the reader knows.

        Yields:
            The events after that. If some are no longer kept, a ``gap`` says how many.
        """
        while True:
            changed = self._changed
            if after < self._dropped:
                yield ExecutionEvent(self._dropped, "gap", {"dropped": self._dropped - after})
                after = self._dropped
            while after < self._seq and after >= self._dropped:
                after += 1
                event, _ = self._events[after]
                if event.kind == "result" and not event.data and self.result is not None:
                    event = ExecutionEvent(event.seq, "result", self.result.to_dict(raw=True))
                yield event
            if after < self._dropped:
                continue
            if self.ended and after >= self._seq:
                return
            await changed.wait()

    async def cancel(self, session: Session) -> bool:
        """Stop it, or keep it from running; return whether it had not ended."""
        if self.ended or self._task is None:
            return False
        if self.record.state == "running":
            return await session.interrupt()
        self._task.cancel()
        await asyncio.wait([self._task])
        return True
