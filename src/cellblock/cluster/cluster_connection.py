"""A synchronous connection to the sessions of a cluster, with the interface of the daemon's connection."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import TYPE_CHECKING, Any

from cellblock.common import loop_thread
from cellblock.common.per_process import PerProcess
from cellblock.errors import DaemonError
from cellblock.operations.base import AnswerT, Request

if TYPE_CHECKING:
    from cellblock.cluster.link import ClusterLink
    from cellblock.common.loop_thread import LoopThread

_AHEAD = 1000
"""Parts of an answer that are read before they are requested."""


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
        self._following: _Following | None = None
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
        following = self._following = _Following(self.thread, self.link.follow(request, body))
        try:
            yield from following
        finally:
            self._following = None
            following.close()

    def hears_before(self, descriptor: int) -> bool:
        """While `follow` is in progress, wait for more parts or until a descriptor is readable.

        Returns:
            Whether there are more parts.
        """
        assert self._following is not None
        return self._following.comes_before(descriptor)

    def _check(self) -> None:
        if not self.usable:
            raise DaemonError("the connection to the cluster is closed, or belongs to the process before a fork")


class _Following:
    """The parts of an answer, which a task reads ahead."""

    def __init__(self, thread: LoopThread, parts: AsyncGenerator[Any, None]) -> None:
        self._thread = thread
        self._parts: deque[Any] = deque()
        self._outcome: BaseException | None = None
        self._over = False
        self._changed = threading.Condition()
        self._room = asyncio.Semaphore(_AHEAD)
        self._readable, self._writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._task = thread.call(lambda: asyncio.ensure_future(self._read(parts)))

    async def _read(self, parts: AsyncGenerator[Any, None]) -> None:
        try:
            async for part in parts:
                self._add(part)
                await self._room.acquire()
        except BaseException as error:  # any error: the thread that waits for a part gets it
            self._outcome = error
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            await parts.aclose()
            with self._changed:
                self._over = True
                self._changed.notify()
            self._wake()

    def _add(self, part: Any) -> None:
        with self._changed:
            self._parts.append(part)
            self._changed.notify()
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._writable, b"x")
        except OSError:
            pass  # full, which wakes as well, or closed

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self._changed:
                while not self._parts and not self._over:
                    self._changed.wait()
                if not self._parts:
                    break
                part = self._parts.popleft()
            self._thread.loop.call_soon_threadsafe(self._room.release)
            yield part
        if self._outcome is not None:
            raise self._outcome

    def comes_before(self, descriptor: int) -> bool:
        """Wait for another part or a readable descriptor; return whether there is a part, or the end."""
        poll = select.poll()
        poll.register(self._readable, select.POLLIN)
        poll.register(descriptor, select.POLLIN)
        while True:
            with self._changed:
                if self._parts or self._over:
                    return True
            ready = {number for number, _ in poll.poll()}
            if self._readable in ready:
                os.read(self._readable, 65536)
            elif ready:
                return False

    def close(self) -> None:
        """Stop reading."""

        async def stop() -> None:
            self._task.cancel()
            await asyncio.wait([self._task])

        if self._thread.usable:
            self._thread.run(stop())
        for descriptor in (self._readable, self._writable):
            os.close(descriptor)


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
