"""A WebSocket of Starlette or FastAPI, for programs that serve an approval channel in an application of their own."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from cellblock.tools.serving.websocket import WebSocket as OwnWebSocket

_MAX_MESSAGE = 64 * 1024


def adapted(websocket: OwnWebSocket | WebSocket) -> OwnWebSocket | Adapted:
    """Return a WebSocket with the methods of our own: this one, unless it is Starlette's."""
    module = sys.modules.get("starlette.websockets")  # if nobody has loaded it, this is not one of its objects
    if module is not None and isinstance(websocket, module.WebSocket):
        return Adapted(websocket)
    return cast("OwnWebSocket", websocket)


class Adapted:
    """A WebSocket of Starlette with the methods of `cellblock.tools.serving.websocket.WebSocket`."""

    def __init__(self, websocket: WebSocket) -> None:
        """Take the WebSocket."""
        self._websocket = websocket

    async def accept(self) -> None:
        """Let it in."""
        await self._websocket.accept()

    async def reject(self, status: int, reason: str) -> None:
        """Refuse it; the server makes a 403 of it, whatever the status."""
        await self._websocket.close(1008, reason)

    async def receive(self) -> str | None:
        """Return the next message; None: there will be none, or it is too long."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        text: str = message.get("text") or ""
        if len(text) > _MAX_MESSAGE:
            await self.close(1009, "the message is too long")
            return None
        return text

    async def send(self, text: str) -> None:
        """Send a message. Nothing is sent if the WebSocket is closed."""
        with suppress(RuntimeError, OSError):  # whoever receives hears that it is closed
            await self._websocket.send_text(text)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close it, more than once if need be."""
        with suppress(RuntimeError, OSError):  # it is closed
            await self._websocket.close(code, reason)
