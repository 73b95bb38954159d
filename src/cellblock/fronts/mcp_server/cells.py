"""Cells of MCP clients: begins and follows them, and finds their requests that wait for a person."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import anyio

from cellblock.errors import CellblockError
from cellblock.fronts.mcp_server.clients import Asker
from cellblock.model import CodeExecutionResult
from cellblock.model.sessions import ExecutionEvent, outcome_of
from cellblock.operations.approvals import Pending
from cellblock.operations.asking import stop_submission
from cellblock.operations.data import milliseconds
from cellblock.operations.executions import Cancel, Follow, Submit

if TYPE_CHECKING:
    from cellblock.fronts.mcp_server.clients import Clients
    from cellblock.model.sessions import PendingApproval, SessionRecord

_AGAIN = 5.0
"""Seconds after which requests that belong to no cell are looked for again, because no event reports them."""

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
        self.asker = Asker(session.kernel_id, asker) if asker else Asker(session.kernel_id)
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

    async def waiting(self) -> list[PendingApproval]:
        """Return the requests of the cell that wait for a person, except those that another call is asking about.

        A server's question between two cells belongs to no cell: the first call that finds it asks.
        """
        session, asking = self.session.kernel_id, self._clients.asking
        pending = {one.id: one for one in await self._clients.ask(Pending(session))}
        for number in [one for one, asker in asking.items() if asker.session == session and one not in pending]:
            del asking[number]
        found = []
        for number, one in pending.items():
            asker = asking.get(number)
            free = asker is None or asker.id == self.asker.id or asker.left < self.asker.began
            if one.execution in (self.id, "") and free:
                asking[number] = self.asker
                found.append(one)
        return found

    async def has_news(self) -> bool:
        """Wait until the cell has ended or a request waits for a decision; return whether a request does."""
        while not self.ended:
            self._changed.clear()
            if self._asks:
                self._asks = False
                if await self.waiting():
                    self._asks = True  # the caller may be cancelled now
                    return True
            await self._changed.wait()
        return False

    async def no_longer_waits(self, request: str) -> None:
        """Wait until one of the cell's requests no longer waits for a decision, or the cell has ended."""
        while not self.ended:
            self._changed.clear()
            if all(one.id != request for one in await self.waiting()):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN):
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
            await stop_submission(clients.ask, session.kernel_id, request.key)
        raise
    return Cell(clients, session, submitted["id"])
