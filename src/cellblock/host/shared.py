"""The default host of executors: one for each event loop, closed when it is no longer used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from cellblock.host.host import Host

LINGER = 30.0
"""Seconds that an unused shared host stays warm for the next user."""

_shared: dict[asyncio.AbstractEventLoop, _Shared] = {}
"""By loop. Not weakly: a host refers to its loop, and would keep its own key alive."""


class _Shared:
    """A host with a reference count."""

    def __init__(self) -> None:
        # Each executor chooses its session's isolation. sandbox=False must work even where no sandbox is possible.
        self.host = Host(isolate="none")
        self.users = 0
        self.timer: asyncio.TimerHandle | None = None
        self.closing: asyncio.Task[None] | None = None
        self.guard = _until_loop_ends(self.host)


async def _until_loop_ends(host: Host) -> AsyncGenerator[None, None]:
    """Close a host when its loop shuts down its generators, as `asyncio.run` does at its end.

    A waiting task would also work, but Python reports it as destroyed if a program drops its loop.
    """
    try:
        yield
    finally:
        await host.close()


async def _close_left_behind() -> None:
    """Close the hosts of loops that were closed without `shutdown_asyncgens`."""
    for loop in [*_shared]:  # other threads have loops, too
        if loop.is_closed() and (left := _shared.get(loop)) is not None:
            await left.host.close()
            _shared.pop(loop, None)  # not before: if this is cancelled, the next call continues


async def acquire() -> Host:
    """Return the running loop's host. Each caller must `release` it once."""
    await _close_left_behind()
    loop = asyncio.get_running_loop()
    shared = _shared.get(loop)
    if shared is None or shared.closing is not None or shared.host.closed:
        shared = _shared[loop] = _Shared()
        await anext(shared.guard)
    shared.users += 1
    if shared.timer is not None:
        shared.timer.cancel()
        shared.timer = None
    return shared.host


def release(host: Host) -> None:
    """Release one reference to a shared host."""
    loop = asyncio.get_running_loop()
    shared = _shared.get(loop)
    if shared is None or shared.host is not host:
        return
    shared.users -= 1
    if shared.users == 0:
        shared.timer = loop.call_later(LINGER, _close, loop, shared)


def _close(loop: asyncio.AbstractEventLoop, shared: _Shared) -> None:
    shared.closing = loop.create_task(shared.host.close())
