"""What MCP servers have asked the people at clients, in the middle of calls of their sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from cellblock.approvals.elicitation import Elicitation
from cellblock.named.session import NamedSession


class Elicited:
    """What MCP servers have asked, until somebody answers or the call has ended."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[str, Elicitation, asyncio.Future[Mapping[str, Any] | None]]] = {}

    async def ask(self, named: NamedSession, elicitation: Elicitation) -> Mapping[str, Any] | None:
        """Have the client that waits for the session's cell ask its person; return what they filled in, if they did."""
        answer: asyncio.Future[Mapping[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._waiting[elicitation.id] = named.record.kernel_id, elicitation, answer
        try:
            for execution in named.executions.values():
                execution.log.look_again()
            return await answer
        finally:
            del self._waiting[elicitation.id]

    def waiting(self, session: str) -> list[Elicitation]:
        """Return what waits for an answer in a session, by its id, oldest first."""
        return [asked for of, asked, answer in self._waiting.values() if of == session and not answer.done()]

    def take(self, number: str, content: Mapping[str, Any] | None) -> None:
        """Take an answer, if it is still waited for.

        Args:
            number: The question's id.
            content: What was filled in; None for a refusal.
        """
        _, _, answer = self._waiting.get(number, (None, None, None))
        if answer is not None and not answer.done():
            answer.set_result(content)
