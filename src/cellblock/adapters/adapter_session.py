"""The session of an adapter: given by the program, or created by the adapter."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from cellblock.common import loop_thread
from cellblock.errors import InvalidInputError, StateError
from cellblock.fronts.executor.executor import CodeExecutor
from cellblock.fronts.executor.sync import SyncCodeExecutor

if TYPE_CHECKING:
    from cellblock.host.place import SessionPlace

_CLOSED = "the session of this adapter is closed; make a new one"


def _check(given: object, options: dict[str, Any], kind: type[object]) -> None:
    if given is not None and not isinstance(given, kind):
        raise InvalidInputError(f"executor must be a {kind.__name__}, not {type(given).__name__}")
    if given is not None and options:
        raise InvalidInputError(f"{', '.join(options)}: pass either an executor or options for a new one, not both")


def _placed(options: dict[str, Any]) -> tuple[SessionPlace | None, dict[str, Any]]:
    """Return options with a working directory, and the directory if it was created here.

    A framework's code seldom belongs in the program's current directory.
    """
    if options.get("working_dir") is not None:
        return None, options
    from cellblock.host.place import new_workspace

    place = new_workspace()
    return place, {**options, "working_dir": place.path}


class SyncSession:
    """A given `SyncCodeExecutor`, which its owner stops, or one created on first use in an empty directory."""

    def __init__(self, given: SyncCodeExecutor | None, options: dict[str, Any]) -> None:
        """Set up without starting.

        Args:
            given: A started executor, or None.
            options: The arguments of `CodeExecutor` for a new one, if none was given.

        Raises:
            InvalidInputError: Both were given, or an option is invalid.
        """
        _check(given, options, SyncCodeExecutor)
        if given is None:
            SyncCodeExecutor(**options)  # validates the options now rather than on first use
        self._executor = given
        self._own: SyncCodeExecutor | None = None
        self._options = options
        self._place: SessionPlace | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def executor(self) -> SyncCodeExecutor:
        """The executor, started.

        Raises:
            StateError: It was closed.
            LaunchError: Its kernel could not be started.
        """
        with self._lock:
            if self._closed:
                raise StateError(_CLOSED)
            if self._executor is None:
                if self._place is None:
                    self._place, self._options = _placed(self._options)
                self._own = SyncCodeExecutor(**self._options)
                self._own.start()
                self._executor = self._own
            return self._executor

    def close(self) -> None:
        """End the session, if it was created here. The operation is idempotent."""
        with self._lock:
            self._closed = True
            if self._own is not None:
                self._own.stop()
                self._own = None
            if self._place is not None:
                loop_thread.shared().run(self._place.remove())
                self._place = None


class AsyncSession:
    """A given `CodeExecutor`, which its owner stops, or one created on first use in an empty directory."""

    def __init__(self, given: CodeExecutor | None, options: dict[str, Any]) -> None:
        """Set up without starting.

        Args:
            given: A started executor, or None.
            options: The arguments of `CodeExecutor` for a new one, if none was given.

        Raises:
            InvalidInputError: Both were given, or an option is invalid.
        """
        _check(given, options, CodeExecutor)
        if given is None:
            CodeExecutor(**options)
        self._executor = given
        self._own: CodeExecutor | None = None
        self._options = options
        self._place: SessionPlace | None = None
        self._closed = False
        self._lock = asyncio.Lock()

    async def executor(self) -> CodeExecutor:
        """Return the executor, started. Concurrent callers get the same one.

        Raises:
            StateError: It was closed.
            LaunchError: Its kernel could not be started.
        """
        async with self._lock:
            if self._closed:
                raise StateError(_CLOSED)
            if self._executor is None:
                if self._place is None:
                    self._place, self._options = _placed(self._options)
                self._own = CodeExecutor(**self._options)
                await self._own.start()
                self._executor = self._own
            return self._executor

    @asynccontextmanager
    async def closed_on_failure(self) -> AsyncIterator[CodeExecutor]:
        """Yield the executor to a block that transfers its ownership. If the block fails or is cancelled, the session ends."""
        async with AsyncExitStack() as failing:
            failing.push_async_callback(self.close)
            yield await self.executor()
            failing.pop_all()

    async def close(self) -> None:
        """End the session, if it was created here. The operation is idempotent, and a cancellation does not stop it."""
        async with self._lock:
            self._closed = True
            if self._own is not None:
                await self._own.stop()
                self._own = None
            if self._place is not None:
                await self._place.remove()
                self._place = None
