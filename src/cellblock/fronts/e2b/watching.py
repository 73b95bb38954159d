"""Directories that E2B's clients watch: as a stream, or by watchers that keep what has changed until the client asks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from cellblock.errors import BusyError, CellblockError, FilesError, NotFoundError
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
    """The directories that E2B's clients watch, in the session of Python's default context."""

    def __init__(self, link: SessionLink, contexts: Contexts) -> None:
        """Begin with none.

        Args:
            link: Where the session is.
            contexts: Whose session it is.
        """
        self._link = link
        self._contexts = contexts
        self._watchers: dict[str, _Watcher] = {}

    async def events(self, path: str, *, recursive: bool, every: float) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the messages to a client about a directory: that it is watched, its changes, and signs of life in between.

        Args:
            path: The directory, as the client has it.
            recursive: Whether those below it are watched, too.
            every: The longest silence, in seconds.
        """
        async with aclosing(self._changes(path, recursive=recursive)) as changes:
            coming = asyncio.ensure_future(anext(changes))
            try:
                while True:
                    await asyncio.wait([coming], timeout=every)
                    if not coming.done():
                        yield {"keepalive": {}}
                        continue
                    change = coming.result()
                    yield {"start": {}} if change is None else {"filesystem": change}
                    coming = asyncio.ensure_future(anext(changes))
            finally:
                coming.cancel()
                await asyncio.wait([coming])

    async def make(self, path: str, *, recursive: bool) -> str:
        """Watch a directory; return the id of the watcher.

        Raises:
            CellblockError: It cannot be watched, or there are too many watchers.
        """
        if len(self._watchers) >= _MOST:
            raise BusyError(f"there are {_MOST} watchers already: remove one of them", 5.0)
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
        """Return what has changed since this was asked last.

        Raises:
            NotFoundError: There is no such watcher.
            CellblockError: It watches no longer, for this reason.
        """
        return self._find(number).take()

    async def remove(self, number: str) -> None:
        """Remove a watcher.

        Raises:
            NotFoundError: There is no such watcher.
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

    async def _changes(self, path: str, *, recursive: bool) -> AsyncGenerator[dict[str, Any] | None, None]:
        """Yield None once a directory is watched, and then its changes as E2B's clients read them."""
        inner = self._contexts.workspace.inner(path)
        session = await self._contexts.ready()
        async with aclosing(self._link.follow(WatchFiles(session, inner, recursive))) as changes:
            async for change in changes:
                kind = _KINDS.get(change["kind"])
                yield None if kind is None else {"name": change["path"], "type": kind}


class _Watcher:
    """Keeps what has changed in a directory until its client asks.

    Attributes:
        begun: Done when the directory is watched.
    """

    def __init__(self, changes: AsyncGenerator[dict[str, Any] | None, None]) -> None:
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

    async def _listen(self, changes: AsyncGenerator[dict[str, Any] | None, None]) -> None:
        try:
            async with aclosing(changes):
                async for change in changes:
                    if change is None:
                        self.begun.set_result(None)
                        continue
                    self._found.append(change)
                    if len(self._found) >= _MOST_EVENTS:
                        raise FilesError(f"there were {_MOST_EVENTS:,} changes that nobody has asked for: make a new watcher")
        except CellblockError as error:
            self._error = error
            if not self.begun.done():
                self.begun.set_exception(error)
