"""Watched directories of E2B's clients: as a stream, or as watchers that store changes until the client polls."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from cellblock.errors import BusyError, CellblockError, FilesError, NotFoundError
from cellblock.fronts.gateway.events import with_pauses
from cellblock.operations.files import WatchFiles

if TYPE_CHECKING:
    from cellblock.fronts.e2b.contexts import Contexts
    from cellblock.service.daemon.link import SessionLink

_KINDS = {
    "created": "EVENT_TYPE_CREATE",
    "modified": "EVENT_TYPE_WRITE",
    "removed": "EVENT_TYPE_REMOVE",
    "renamed": "EVENT_TYPE_RENAME",
    "attributes": "EVENT_TYPE_CHMOD",
}
_MOST = 64
_MOST_EVENTS = 100_000


class Watchers:
    """The watched directories, in the session of Python's default context."""

    def __init__(self, link: SessionLink, contexts: Contexts) -> None:
        """Set up without watchers.

        Args:
            link: The link to the session.
            contexts: The contexts of the sandbox.
        """
        self._link = link
        self._contexts = contexts
        self._watchers: dict[str, _Watcher] = {}

    async def events(self, path: str, *, recursive: bool, every: float) -> AsyncGenerator[dict[str, Any], None]:
        """Yield messages about a directory: the start of the watch, changes, and keep-alive messages.

        Args:
            path: The client's path of the directory.
            recursive: Whether to include subdirectories.
            every: The maximum silence in seconds.
        """
        started = False
        async with aclosing(with_pauses(self._changes(path, recursive=recursive), every)) as messages:
            async for message in messages:
                # E2B's clients refuse a stream that begins with anything but the start.
                if started or message is not None:
                    started = True
                    yield {"keepalive": {}} if message is None else message

    async def make(self, path: str, *, recursive: bool) -> str:
        """Watch a directory; return the id of the watcher.

        Raises:
            CellblockError: The directory cannot be watched, or there are too many watchers.
        """
        if len(self._watchers) >= _MOST:
            raise BusyError(f"there are already {_MOST} watchers: remove one", 5.0)
        watcher = _Watcher(self._changes(path, recursive=recursive))
        number = secrets.token_hex(8)
        self._watchers[number] = watcher
        try:
            await watcher.begun
        except BaseException:
            await self.remove(number)
            raise
        return number

    def take(self, number: str) -> list[dict[str, Any]]:
        """Return the changes since the last call.

        Raises:
            NotFoundError: The watcher does not exist.
            CellblockError: The watcher failed with this error.
        """
        return self._find(number).take()

    async def remove(self, number: str) -> None:
        """Remove a watcher.

        Raises:
            NotFoundError: The watcher does not exist.
        """
        watcher = self._find(number)
        del self._watchers[number]
        await watcher.close()

    async def close(self) -> None:
        """Remove all watchers."""
        await asyncio.gather(*(self.remove(number) for number in [*self._watchers]))

    def _find(self, number: str) -> _Watcher:
        if number not in self._watchers:
            raise NotFoundError(f"there is no watcher {number[:40]!r}")
        return self._watchers[number]

    async def _changes(self, path: str, *, recursive: bool) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the messages of a stream: the start once a directory is watched, then its changes."""
        inner = self._contexts.workspace.inner(path)
        session = await self._contexts.ready()
        async with aclosing(self._link.follow(WatchFiles(session, inner, recursive))) as changes:
            async for change in changes:
                kind = _KINDS.get(change["kind"])
                yield {"start": {}} if kind is None else {"filesystem": {"name": change["path"], "type": kind}}


class _Watcher:
    """A watcher that stores changes in a directory until its client polls.

    Attributes:
        begun: Done when the directory is watched.
    """

    def __init__(self, changes: AsyncGenerator[dict[str, Any], None]) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._found: list[dict[str, Any]] = []
        self._error: CellblockError | None = None
        self._task = asyncio.create_task(self._listen(changes))

    def take(self) -> list[dict[str, Any]]:
        if not self._found and self._error is not None:
            raise self._error
        found, self._found = self._found, []
        return found

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _listen(self, changes: AsyncGenerator[dict[str, Any], None]) -> None:
        try:
            async with aclosing(changes):
                async for change in changes:
                    if "start" in change:
                        self.begun.set_result(None)
                        continue
                    self._found.append(change["filesystem"])
                    if len(self._found) >= _MOST_EVENTS:
                        raise FilesError(f"more than {_MOST_EVENTS:,} changes were not read: create a new watcher")
        except CellblockError as error:
            self._error = error
            if not self.begun.done():
                self.begun.set_exception(error)
