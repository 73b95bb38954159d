"""A synchronous connection to the sessions of a cluster, with the interface of the daemon's connection."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING, Any

from cellblock.common import loop_thread
from cellblock.common.per_process import PerProcess
from cellblock.errors import DaemonError
from cellblock.operations.base import AnswerT, Request

if TYPE_CHECKING:
    from cellblock.cluster.link import ClusterLink
    from cellblock.common.loop_thread import LoopThread

_END = object()


class ClusterConnection:
    """A connection to the nodes of a cluster. All connections of a process share one link, in a thread.

    Attributes:
        thread: Runs the link.
        link: The link to the nodes.
        closed: Whether the connection is closed.
    """

    def __init__(self, thread: LoopThread, link: ClusterLink) -> None:
        self.thread = thread
        self.link = link
        self._process = os.getpid()
        self._coming: asyncio.Future[Any] | None = None
        """The next part for `follow`, requested before it is needed."""
        self.closed = False

    @property
    def usable(self) -> bool:
        """Whether the connection is open and belongs to this process."""
        return not self.closed and self._process == os.getpid() and self.thread.usable

    def close(self) -> None:
        """Close the connection. Executions continue."""
        self.closed = True

    def call(self, request: Request[AnswerT], body: bytes = b"") -> AnswerT:
        """Run an operation as `ClusterLink.call` does, and return its answer."""
        self._check()
        return self.thread.run(self.link.call(request, body))

    def follow(self, request: Request[Any], body: bytes = b"") -> Generator[Any, None, None]:
        """Send a request that has many answers, and yield them as they arrive."""
        self._check()
        parts = self.link.follow(request, body)
        coming = self._coming = self.thread.call(_next, parts)
        try:
            while (part := self.thread.run(coming)) is not _END:
                coming = self._coming = self.thread.call(_next, parts)
                yield part
        finally:
            self._coming = None
            if self.thread.usable:
                self.thread.run(_end(coming, parts))

    def hears_before(self, descriptor: int) -> bool:
        """While `follow` is in progress, wait for more parts or until a descriptor is readable.

        Returns:
            Whether there are more parts.
        """
        assert self._coming is not None
        return self.thread.run(_comes_before(self._coming, descriptor))

    def _check(self) -> None:
        if not self.usable:
            raise DaemonError("the connection to the cluster is closed, or belongs to the process before a fork")


def _next(parts: AsyncGenerator[Any, None]) -> asyncio.Future[Any]:
    return asyncio.ensure_future(anext(parts, _END))


async def _end(coming: asyncio.Future[Any], parts: AsyncGenerator[Any, None]) -> None:
    coming.cancel()
    await asyncio.gather(coming, return_exceptions=True)
    await parts.aclose()


async def _comes_before(coming: asyncio.Future[Any], descriptor: int) -> bool:
    """Wait for the next part or until a descriptor is readable. Return whether the part came first."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except OSError:  # a file, which is always readable, or closed
        return coming.done()
    waiting = loop.create_task(readable.wait())
    try:
        await asyncio.wait([coming, waiting], return_when=asyncio.FIRST_COMPLETED)
        return coming.done()
    finally:
        waiting.cancel()
        loop.remove_reader(descriptor)


def _connect(address: str, patience: float) -> ClusterConnection:
    from cellblock.cluster.opening import open_link

    return ClusterConnection(loop_thread.shared(), open_link(address, patience))


_shared = PerProcess(_connect)


def shared_connection(address: str, patience: float) -> ClusterConnection:
    """Return a connection to a Ray cluster's sessions. The link is created once in a process, and ends with it.

    Raises:
        DaemonError: The cluster or its director does not exist.
    """
    found = _shared(address, patience)
    return ClusterConnection(found.thread, found.link)
