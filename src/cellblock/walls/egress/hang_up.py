"""Detects that a client has hung up while the proxy waits for something else."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_hang_up(client: socket.socket, call: Callable[[], object]) -> Iterator[Callable[[], bool]]:
    """Call a function, perhaps repeatedly, once the client has closed or half closed its end during this context.

    Bytes that the client sent ahead stay unread, and do not count. The loop's own watch would report them in every turn, so
    this uses an epoll object that becomes readable only at a hang-up.

    Args:
        client: Its socket.
        call: Called on the running loop.

    Yields:
        A function that returns whether the client has hung up, even if the loop has not noticed yet.

    Raises:
        OSError: There is no descriptor left for the watch.
    """
    loop = asyncio.get_running_loop()
    with select.epoll(1) as watch:
        watch.register(client.fileno(), select.EPOLLRDHUP)  # errors are always reported
        loop.add_reader(watch.fileno(), call)
        try:
            yield lambda: bool(watch.poll(0))
        finally:
            loop.remove_reader(watch.fileno())
