"""How long the work on an answer goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from cellblock.fronts.gateway.answers import while_there


class Client:
    """One end of a connection."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self._said = False

    async def receive(self) -> dict[str, Any]:
        """Return the rest of a body, and then wait until the client has left."""
        if not self._said:
            self._said = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_work_is_done_for_as_long_as_its_client_stays() -> None:
    async def work() -> str:
        return "done"

    async def endless(ended: asyncio.Event) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fails() -> None:
        raise ValueError

    client, ended = Client(), asyncio.Event()
    assert await while_there(client.receive, work()) == "done"
    with pytest.raises(ValueError, match=r"^$"):
        await while_there(client.receive, fails())
    waiting = asyncio.create_task(while_there(client.receive, endless(ended)))
    await asyncio.sleep(0)
    client.gone.set()
    with pytest.raises(ClientDisconnect):
        await waiting
    assert ended.is_set()
    ended.clear()
    waiting = asyncio.create_task(while_there(Client().receive, endless(ended)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set()
