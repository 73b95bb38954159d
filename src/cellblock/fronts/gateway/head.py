"""HEAD for every address that GET has: its answer without the body."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


def with_head(app: ASGIApp) -> ASGIApp:
    """Return an application that answers HEAD as GET, and sends no body."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await app(scope, receive, send)
            return
        ended = asyncio.Event()

        async def take() -> Message:
            if not ended.is_set():
                return await receive()
            return {"type": "http.disconnect"}  # ends what would send events without an end

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                ended.set()

        await app({**scope, "method": "GET"}, take, send_head)

    return answer
