"""The session of an adapter: given by the program, or created by the adapter."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from cellblock.common import loop_thread
from cellblock.errors import InvalidInputError, StateError
from cellblock.fronts.executor.executor import CodeExecutor
from cellblock.fronts.executor.sync import SyncCodeExecutor

if TYPE_CHECKING:
    from cellblock.host.place import SessionPlace

_ExecutorT = TypeVar("_ExecutorT", CodeExecutor, SyncCodeExecutor)


class _AdapterSession(Generic[_ExecutorT]):
    """What both kinds of sessions share. Their own methods hold a lock of their kind."""

    kind: ClassVar[type[Any]]

    def __init__(self, given: _ExecutorT | None, options: dict[str, Any]) -> None:
        """Set up without starting.

        Args:
            given: A started executor, or None.
            options: The arguments of `CodeExecutor` for a new one, if none was given.

        Raises:
            InvalidInputError: Both were given, or an option is invalid.
        """
        if given is None:
            self.kind(**options)  # validates the options now rather than on first use
        elif not isinstance(given, self.kind):
            raise InvalidInputError(f"executor must be a {self.kind.__name__}, not {type(given).__name__}")
        elif options:
            raise InvalidInputError(f"{', '.join(options)}: pass either an executor or options for a new one, not both")
        self._executor = given
        self._own: _ExecutorT | None = None
        self._options = options
        self._place: SessionPlace | None = None
        self._closed = False

    def _new(self) -> _ExecutorT:
        """Return a new executor, which is not started.

        Without a `working_dir`, it gets an empty directory: a framework's code seldom belongs in the program's own.
        """
        if self._options.get("working_dir") is None:
            from cellblock.host.place import new_workspace

            self._place = new_workspace()
            self._options = {**self._options, "working_dir": self._place.path}
        self._own = self.kind(**self._options)
        return self._own

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("the session of this adapter is closed; make a new one")


class SyncSession(_AdapterSession[SyncCodeExecutor]):
    """A given `SyncCodeExecutor`, which its owner stops, or one created on first use in an empty directory."""

    kind = SyncCodeExecutor

    def __init__(self, given: SyncCodeExecutor | None, options: dict[str, Any]) -> None:
        super().__init__(given, options)
        self._lock = threading.Lock()

    @property
    def executor(self) -> SyncCodeExecutor:
        """The executor, started.

        Raises:
            StateError: It was closed.
            LaunchError: Its kernel could not be started.
        """
        with self._lock:
            self._check_open()
            if self._executor is None:
                made = self._new()
                made.start()
                self._executor = made
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


class AsyncSession(_AdapterSession[CodeExecutor]):
    """A given `CodeExecutor`, which its owner stops, or one created on first use in an empty directory."""

    kind = CodeExecutor

    def __init__(self, given: CodeExecutor | None, options: dict[str, Any]) -> None:
        super().__init__(given, options)
        self._lock = asyncio.Lock()

    async def executor(self) -> CodeExecutor:
        """Return the executor, started. Concurrent callers get the same one.

        Raises:
            StateError: It was closed.
            LaunchError: Its kernel could not be started.
        """
        async with self._lock:
            self._check_open()
            if self._executor is None:
                made = self._new()
                await made.start()
                self._executor = made
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
