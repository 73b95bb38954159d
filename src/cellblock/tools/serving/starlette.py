"""Adapts WebSockets of Starlette and FastAPI, for approval channels in other applications."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from cellblock.tools.serving.websocket import WebSocket as OwnWebSocket

_MAX_MESSAGE = 64 * 1024


def adapted(websocket: OwnWebSocket | WebSocket) -> OwnWebSocket | Adapted:
    """Return a WebSocket with cellblock's interface: the same one, unless it is Starlette's."""
    module = sys.modules.get("starlette.websockets")  # if Starlette is not imported, this is not one of its objects
    if module is not None and isinstance(websocket, module.WebSocket):
        return Adapted(websocket)
    return cast("OwnWebSocket", websocket)


class Adapted:
    """A WebSocket of Starlette with the methods of `cellblock.tools.serving.websocket.WebSocket`."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def accept(self) -> None:
        await self._websocket.accept()

    async def reject(self, status: int, reason: str) -> None:
        """Reject the WebSocket; the server always answers 403."""
        await self._websocket.close(1008, reason)

    async def receive(self) -> str | None:
        """Return the next message; None at the end, or if it is too long."""
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
        with suppress(RuntimeError, OSError):  # the receiver notices that it is closed
            await self._websocket.send_text(text)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the WebSocket. The operation is idempotent."""
        with suppress(RuntimeError, OSError):  # it is closed
            await self._websocket.close(code, reason)
