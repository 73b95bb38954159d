"""What known clients can take: how long they wait for an answer, and whether their models see pictures."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Hashable
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context
    from mcp_types import CallToolResult

    from cellblock.fronts.mcp_server.server_options import ServerOptions

LIMITS = {
    "mcp": 5,  # the Python SDK's name, which OpenAI Agents leaves unchanged
    "google-adk": 5,
    "opencode": 5,
    "claude-ai": 60,
    "codex-mcp-client": 60,
    "cline": 60,
    "goose": 300,
    "gemini-cli-mcp-client": 600,
}
"""Seconds after which clients give up a call by default, by the names that they give themselves, in lower case.

Of a client whose versions differ, it is the shortest limit. docs/mcp-server.md has the sources.
"""

_WITH_BASE64 = frozenset(("google-adk",))
"""Clients whose models get pictures as base64 text, thousands of tokens that mean nothing to them."""

_SHARE = 0.8
_LONGEST = 3600.0
_MOST = 100


def longest_wait(options: ServerOptions, ctx: Context[Any, Any]) -> float:
    """Return the seconds within which a call must be answered: the option, or less than the client's known limit."""
    if options.wait is not None:
        return options.wait
    return min(_SHARE * LIMITS.get(_name(ctx), math.inf), _LONGEST)


def keeps_pictures(options: ServerOptions, ctx: Context[Any, Any]) -> bool:
    """Return whether answers to a client only name the files of pictures."""
    return options.pictures_as_files or _name(ctx) in _WITH_BASE64


def _name(ctx: Context[Any, Any]) -> str:
    known = ctx.session.client_params
    return "" if known is None else known.client_info.name.lower()


class Work:
    """Work of calls, by the calls' arguments. A call that does not get the result in time can be repeated to wait on."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[CallToolResult]] = {}

    async def answer(
        self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, CallToolResult]], seconds: float
    ) -> CallToolResult | None:
        """Return the result of some work, or None if it continues. Cancelling this stops the work.

        Args:
            key: Identifies the work.
            begin: Begins the work, if no earlier call has.
            seconds: The time to wait.
        """
        if (task := self._tasks.get(key)) is None:
            self._forget_oldest()
            task = self._tasks[key] = asyncio.create_task(begin())
        try:
            ended, _ = await asyncio.wait([task], timeout=seconds)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                task.cancel()
                await asyncio.wait([task])
            self._tasks.pop(key, None)
            raise
        if ended:
            self._tasks.pop(key, None)
            return task.result()
        return None

    def _forget_oldest(self) -> None:
        """Drop the oldest unread result, if there are many."""
        if len(self._tasks) >= _MOST:
            for key in [key for key, task in self._tasks.items() if task.done()][:1]:
                self._tasks.pop(key).exception()

    async def close(self) -> None:
        """Stop all work."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
