"""Detects that a client has hung up while the proxy waits for something else."""

from __future__ import annotations

import asyncio
import select
import socket
from typing import Any


async def wait_for_answer(question: asyncio.Future[Any], client: socket.socket) -> None:
    """Wait for the answer to a question, and cancel the question if the client closes or half closes its end.

    Bytes that the client sent ahead stay unread, and do not count. The loop's own watch would report them in every turn, so
    this uses an epoll object that becomes readable only at a hang-up.

    Raises:
        ConnectionAbortedError: The client has hung up.
        OSError: There is no descriptor left for the watch.
    """
    loop = asyncio.get_running_loop()
    try:
        with select.epoll(1) as watch:
            watch.register(client.fileno(), select.EPOLLRDHUP)  # errors are always reported
            loop.add_reader(watch.fileno(), question.cancel)
            try:
                await asyncio.wait([question])
                if watch.poll(0):  # even if the loop has not noticed yet
                    raise ConnectionAbortedError("the client hung up while it waited for approval")
            finally:
                loop.remove_reader(watch.fileno())
    finally:
        question.cancel()
