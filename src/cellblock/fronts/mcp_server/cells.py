"""Runs cells for MCP clients: reports progress, asks questions, and stops cells of cancelled calls."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

import anyio
from mcp_types import InputRequiredResult

from cellblock.errors import CellblockError, NotFoundError
from cellblock.fronts.mcp_server import asking
from cellblock.model import CodeExecutionResult
from cellblock.model.sessions import ExecutionEvent, outcome_of
from cellblock.operations.data import milliseconds
from cellblock.operations.executions import Cancel, Follow, Lookup, Submit
from cellblock.operations.sessions import Interrupt, Status

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context

    from cellblock.fronts.mcp_server.clients import Clients
    from cellblock.model.sessions import SessionRecord

_BEAT = 5.0
"""Seconds between two reports of progress: hosts give up calls that are silent for minutes."""

_TRIES, _PAUSE = 10, 0.01

_SAID = 100_000
"""Characters of the end of a cell's output that are kept for a call that does not wait for its end."""


class Cell:
    """A cell that a call waits for. It is followed until `close`.

    Attributes:
        id: The cell's id.
        session: The session.
        asker: Asks the person at the client about the cell's requests.
        notes: Lines for the answer of this call.
    """

    def __init__(self, clients: Clients, session: SessionRecord, number: str, asker: str = "") -> None:
        self.id = number
        self.session = session
        self.asker = asking.Asker(session.kernel_id, asker) if asker else asking.Asker(session.kernel_id)
        self.notes: list[str] = []
        self._said: deque[str] = deque()
        self._size = 0
        self._clients = clients
        self._asks = True  # an earlier call may have asked
        self._changed = asyncio.Event()
        self._following = asyncio.create_task(self._follow())
        self._following.add_done_callback(lambda _: self._changed.set())

    @property
    def ended(self) -> bool:
        """Whether the cell has ended."""
        return self._following.done()

    @property
    def said(self) -> str:
        """The end of the output so far."""
        return "".join(self._said)[-_SAID:]

    async def result(self) -> CodeExecutionResult:
        """Return the result, once the cell has ended.

        Raises:
            CellblockError: The cell could not be run, or its outcome is unknown.
        """
        return await asyncio.shield(self._following)

    async def has_news(self) -> bool:
        """Wait until the cell has ended or a request waits for a decision; return whether a request does."""
        while not self.ended:
            self._changed.clear()
            if self._asks:
                self._asks = False
                if await asking.waiting(self._clients, self):
                    self._asks = True  # the caller may be cancelled now
                    return True
            await self._changed.wait()
        return False

    async def no_longer_waits(self, request: str) -> None:
        """Wait until one of the cell's requests no longer waits for a decision, or the cell has ended."""
        while not self.ended:
            self._changed.clear()
            if all(one.id != request for one in await asking.waiting(self._clients, self)):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(_BEAT):  # some requests belong to no cell, so no event reports them
                    await self._changed.wait()

    def look_again(self) -> None:
        """Check again for pending decisions, because some belong to no cell."""
        self._asks = True

    async def cancel(self) -> None:
        with suppress(CellblockError):
            await self._clients.ask(Cancel(self.id))

    async def close(self) -> None:
        """Stop following the cell. It continues."""
        self.asker.left = time.monotonic()
        self._following.cancel()
        await asyncio.wait([self._following])
        if not self._following.cancelled():
            self._following.exception()  # mark as retrieved

    async def _follow(self) -> CodeExecutionResult:
        last: ExecutionEvent | None = None
        async with aclosing(self._clients.place.link.follow(Follow(self.id))) as parts:
            async for part in parts:
                last = ExecutionEvent.from_dict(part)
                if last.kind == "stream":
                    self._say(last.data["text"])
                elif last.kind in ("approval", "decided"):
                    self._asks = True
                    self._changed.set()
        return outcome_of(last, self.id)

    def _say(self, text: str) -> None:
        """Add a piece of output, and drop the oldest pieces: there can be a million of them."""
        self._said.append(text)
        self._size += len(text)
        while self._size - len(self._said[0]) >= _SAID:
            self._size -= len(self._said.popleft())


async def begin(clients: Clients, session: SessionRecord, code: str, timeout: float) -> Cell:
    """Run code in a session.

    Args:
        clients: The sessions.
        session: The session.
        code: The code.
        timeout: Limit in seconds.
    """
    request = Submit(session.kernel_id, timeout=milliseconds(timeout), key=secrets.token_hex(16), live=True)
    try:
        submitted = await clients.place.link.call(request, code.encode("utf-8", "surrogatepass"))
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await _keep_from_running(clients, session, request.key)
        raise
    return Cell(clients, session, submitted["id"])


async def _keep_from_running(clients: Clients, session: SessionRecord, key: str) -> None:
    """Stop the submission of a cancelled call, which may still be in transit."""
    with suppress(CellblockError):
        for _ in range(_TRIES):
            if await clients.ask(Interrupt(session.kernel_id, key)):
                return
            await asyncio.sleep(_PAUSE)


async def run(clients: Clients, cell: Cell, wait: float, ctx: Context[Any, Any]) -> InputRequiredResult | None:
    """Wait for the end of a cell, within a limit. Meanwhile, report progress and ask about its requests.

    Args:
        clients: The sessions.
        cell: The cell.
        wait: The maximum number of seconds to wait.
        ctx: The call.

    Returns:
        Questions for a client that has to call again with the answers; else None.
    """
    deadline = time.monotonic() + wait
    try:
        if ctx.input_responses:
            await asking.take_answers(clients, cell, ctx)
        while not cell.ended and (left := deadline - time.monotonic()) > 0:
            asks: bool | None = None
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, _BEAT)):
                    asks = await cell.has_news()
            if asks is None:
                cell.look_again()
                await ctx.report_progress(time.monotonic() - deadline + wait, message=_last_words(cell))
            elif asks and (questions := await asking.ask(clients, cell, ctx)) is not None:
                return questions
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await cell.cancel()
        raise
    return None


def _last_words(cell: Cell) -> str:
    lines = cell.said.strip().splitlines()
    return lines[-1][-200:] if lines else "running"


async def resumed(clients: Clients, number: str, ctx: Context[Any, Any]) -> Cell | None:
    """Return the cell that a call continues: the cell of its answers, or the named cell.

    Raises:
        NotFoundError: The cell is unknown, or no longer stored.
    """
    kept = asking.state(ctx)
    number = kept.get("execution", number)
    if not number:
        return None
    try:
        session = await clients.ask(Status((await clients.ask(Lookup(number))).session))
    except NotFoundError:
        session = None
    if session is None or not clients.is_ours(session.name):
        raise NotFoundError(f"there is no cell {number!r}, or it is no longer stored: run the code again")
    return Cell(clients, session, number, kept.get("asker", ""))
