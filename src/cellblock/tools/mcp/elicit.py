"""Forwards a server's questions during a call only to the person for whom the call is made.

In protocol versions with a handshake, a server's request does not name its call. Sessions share servers, so a question
could be shown to the wrong person, and the answer would reach another person's call. With these versions, a person is asked
only while all calls in flight at the server belong to one session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types

from cellblock.errors import InvalidInputError
from cellblock.tools.approvals.elicitation import Person, check_answer, read_elicitation

_LOG = logging.getLogger("cellblock.tools")
_MOST = 4
"""Maximum questions to one person at a time."""


@dataclass(eq=False)
class _Calls:
    """The calls of one session that are in flight.

    Attributes:
        person: The person to ask about them, or None.
        count: The number of calls.
        asking: The open questions.
    """

    person: Person | None
    count: int = 0
    asking: set[asyncio.Task[Any]] = field(default_factory=set)


_current: ContextVar[tuple[object, _Calls] | None] = ContextVar("cellblock_elicit", default=None)


class Elicitations:
    """The questions of one server on one connection."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._calls: dict[str, _Calls] = {}
        self._left: set[str] = set()

    @contextmanager
    def call(self, person: Person | None) -> Iterator[None]:
        """Mark a call as in flight in this context. Its questions are withdrawn at its end.

        Args:
            person: The person to ask about it.
        """
        session = "" if person is None else person.session
        calls = self._calls.setdefault(session, _Calls(person))
        calls.count += 1
        token = _current.set((self, calls))
        try:
            yield
        except asyncio.CancelledError:
            self._left.add(session)  # the server was told of the cancellation, but may continue the call
            raise
        finally:
            _current.reset(token)
            calls.count -= 1
            if not calls.count:
                del self._calls[session]
                for task in calls.asking:
                    task.cancel()

    async def answer(self, context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Answer the server: a callback of the SDK's client."""
        calls = self._whose()
        if calls is None or calls.person is None or len(calls.asking) >= _MOST:
            return types.ElicitResult(action="decline")
        if not isinstance(params, types.ElicitRequestFormParams):
            return types.ElicitResult(action="decline")  # a page to be opened, for an unknown person
        try:
            elicitation = read_elicitation(self._server, params.message, params.requested_schema)
        except InvalidInputError as error:
            _LOG.warning("a question of MCP server %r was not shown: %s", self._server, error)
            return types.ElicitResult(action="decline")
        task = asyncio.ensure_future(calls.person.ask(elicitation))
        calls.asking.add(task)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            calls.asking.discard(task)
        if task.cancelled():
            return types.ElicitResult(action="cancel")
        try:
            content = task.result()
            if content is None:
                return types.ElicitResult(action="decline")
            return types.ElicitResult(action="accept", content=check_answer(elicitation, content))
        except Exception:  # the program's own handler may raise anything, and the server waits for an answer
            _LOG.exception("a question of MCP server %r could not be answered", self._server)
            return types.ElicitResult(action="cancel")

    def _whose(self) -> _Calls | None:
        """Return the calls that a question belongs to; None if unknown."""
        current = _current.get()
        if current is not None and current[0] is self:
            return current[1]  # the SDK asks in the context of the call
        return whose(self._calls, self._left)


def whose(calls: dict[str, _Calls], left: set[str]) -> _Calls | None:
    """Return the calls of the only session that a question can belong to; None if there are several.

    Args:
        calls: The calls in flight, by session.
        left: The sessions with a cancelled call that the server may still be processing.
    """
    if len(calls) != 1 or not left <= calls.keys():
        return None
    return next(iter(calls.values()))
