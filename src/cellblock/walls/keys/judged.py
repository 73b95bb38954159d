"""Asks the host about each request of an opened connection, in a turnkey."""

from __future__ import annotations

import base64
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from cellblock.walls.keys.messages import PIECE

Said: TypeAlias = Callable[[dict[str, Any]], Awaitable[tuple[dict[str, Any], socket.socket | None]]]
"""Sends the host a message about a connection, and returns its answer with a socket that came with it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The host's decision about a request.

    Attributes:
        refused: The status and the text for the client; None if the request may be sent.
        body: The body that was decided about, which must be sent; None if no person was asked.
        upstream: A new connection to the server; None for the present one.
    """

    refused: tuple[int, str] | None
    body: bytes | None = None
    upstream: socket.socket | None = None


class Judge:
    """Asks the host about the requests of one connection.

    Args:
        say: Sends the host a message.
    """

    def __init__(self, say: Said) -> None:
        self._say = say

    async def ask(self, method: str, url: str, secrets: list[str], body: Callable[[], Awaitable[bytes | None]]) -> Answer:
        """Ask about a request.

        Args:
            method: The method.
            url: The target, as the client sent it.
            secrets: The names of the secrets that it would contain.
            body: Returns the whole body, if a person must see it; None if it is too large.
        """
        answer, upstream = await self._say({"method": method, "url": url, "secrets": secrets})
        content = None
        if "wanted" in answer:
            if (content := await body()) is None:
                answer, upstream = await self._say({"large": True})
            else:
                answer, upstream = await self._show(content)
        refused = answer["refused"]
        return Answer(None if refused is None else (refused[0], refused[1]), content, upstream)

    async def _show(self, content: bytes) -> tuple[dict[str, Any], socket.socket | None]:
        for start in range(0, max(len(content), 1), PIECE):
            piece = base64.b64encode(content[start : start + PIECE]).decode()
            last = start + PIECE >= len(content)
            answer, upstream = await self._say({"piece": piece, "last": last})
        return answer, upstream
