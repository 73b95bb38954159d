"""One rollout: a session with its own files, a lifetime, and a record of its events."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from cellblock.errors import InvalidInputError, StateError
from cellblock.fronts.rollouts.trajectory import Files, Trajectory, changes

if TYPE_CHECKING:
    from cellblock.fronts.executor.executor import CodeExecutor
    from cellblock.host import Session
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.files import Files as WorkspaceFiles
    from cellblock.host.programs.process import Process
    from cellblock.host.programs.program_files import SessionFiles
    from cellblock.model import CodeExecutionResult
    from cellblock.model.programs import ExecKeywords, ExecResult, SpawnKeywords


class Rollout:
    """A rollout, created by `Pool.rollout`. Its calls have no time limit of their own: the lifetime is the limit.

    Attributes:
        key: The key in the pool.
        seed: The seed of random numbers; None for a new one.
        labels: Its labels, including the pool's.
        executor: The executor of its code.
        trajectory: The record of its events.
    """

    def __init__(
        self,
        key: str,
        seed: int | None,
        labels: Mapping[str, str],
        executor: CodeExecutor,
        lifetime: Lifetime,
        trajectory: Trajectory,
    ) -> None:
        """Take over a running executor.

        Args:
            key: The key in the pool.
            seed: The seed of random numbers; None for a new one.
            labels: The labels.
            executor: The executor of the code.
            lifetime: Ends the rollout.
            trajectory: Records the events.
        """
        self.key = key
        self.seed = seed
        self.labels = dict(labels)
        self.executor = executor
        self.trajectory = trajectory
        self._lifetime = lifetime
        self._files: Files = {}

    def __repr__(self) -> str:
        return f"<Rollout {self.key!r} in {self.workspace!r}>"

    @property
    def session(self) -> Session:
        """The session, for other operations. They are recorded in the trajectory, too."""
        return self.executor.session

    @property
    def files(self) -> WorkspaceFiles:
        """Access to files of the workspace, from outside (docs/files.md)."""
        return self.session.files

    @property
    def fs(self) -> SessionFiles:
        """Access to files as the code sees them (docs/programs.md)."""
        return self.session.fs

    @property
    def workspace(self) -> str:
        """The directory of the rollout's files, which is removed with it."""
        return self.session.workspace

    async def execute(self, code: str, timeout: float | None = None) -> CodeExecutionResult:
        """Run a cell and return its result, whether or not it succeeded, as `Session.execute` does."""
        async with self._lifetime.busy():
            return await self.session.execute(code, timeout=timeout)

    async def exec(self, command: Sequence[str] | str, **how: Unpack[ExecKeywords]) -> ExecResult:
        """Run a program independent of the kernel, as `Session.exec` does, for verifiers whose output code cannot fake."""
        how.setdefault("timeout", None)
        async with self._lifetime.busy():
            return await self.session.exec(command, **how)

    async def spawn(self, command: Sequence[str] | str, **how: Unpack[SpawnKeywords]) -> Process:
        """Start a program independent of the kernel, as `Session.spawn` does."""
        async with self._lifetime.busy():
            return await self.session.spawn(command, **how)

    async def close_egress(self, routes: Sequence[str] = ()) -> None:
        """Restrict the reachable hosts to some of those that were allowed; to none by default.

        Use it after a set-up with a network, such as an installation, for an agent without one. All open connections end.
        The restriction cannot be reverted.

        Args:
            routes: Hosts as in ``allow_hosts``.

        Raises:
            InvalidInputError: A host is invalid.
        """
        await self.session.close_egress(routes)
        self.trajectory.add("note", egress=list(routes))

    async def snapshot(self, name: str = "") -> Checkpoint:
        """Create a checkpoint, files included, as `Session.checkpoint` does. The trajectory gets the changed files."""
        async with self._lifetime.busy():
            made = await self.session.checkpoint(name, files="copy")
            await self.look_at_files()
            return made

    async def look_at_files(self) -> None:
        """Add files changed since the last such event, or since the start of the rollout, to the trajectory."""
        before = self._files
        await self.remember_files()
        self.trajectory.add("files", **changes(before, self._files))

    async def remember_files(self) -> None:
        """Record the current files, for the changes until the next event."""
        listed = await self.files.list(recursive=True)
        self._files = {one.path: (one.size, one.modified) for one in listed if one.kind != "directory"}


class Lifetime:
    """A limit that ends a rollout at the end of its lifetime, or after inactivity."""

    def __init__(self, lifetime: float | None, idle: float | None) -> None:
        """Set up; nothing ends before `run`.

        Args:
            lifetime: Seconds from admission to the end; None for no limit.
            idle: Seconds without a call; None for no limit.
        """
        self._loop = asyncio.get_running_loop()
        self._end = None if lifetime is None else self._loop.time() + lifetime
        self._idle = idle
        self._calls = 0
        self._timeout: asyncio.Timeout | None = None
        self._for_idleness = False

    @asynccontextmanager
    async def run(self, key: str, lifetime: float | None) -> AsyncIterator[None]:
        """Run a rollout within its limits.

        Raises:
            TimeoutError: A limit ended the rollout.
        """
        try:
            async with asyncio.timeout_at(self._end) as self._timeout:
                self._set()
                yield
        except TimeoutError:
            if self._timeout is None or not self._timeout.expired():
                raise
            why = f"it was idle for {self._idle:g} s" if self._for_idleness else f"its lifetime is {lifetime:g} s"
            raise TimeoutError(f"rollout {key!r} was ended: {why}") from None

    @asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """Count a call: during a call, the rollout is not idle."""
        if self._timeout is None:
            raise StateError("the rollout has ended")
        self._calls += 1
        self._set()
        try:
            yield
        finally:
            self._calls -= 1
            self._set()

    def _set(self) -> None:
        timeout = self._timeout
        if timeout is None or timeout.expired():
            return
        end, self._for_idleness = self._end, False
        if self._idle is not None and not self._calls and (end is None or self._loop.time() + self._idle < end):
            end, self._for_idleness = self._loop.time() + self._idle, True
        if timeout.when() != end:
            timeout.reschedule(end)


def check_template(template: str | os.PathLike[str] | None) -> Path | None:
    """Return the template directory of the rollouts.

    Raises:
        InvalidInputError: It is not a directory.
    """
    if template is None:
        return None
    found = Path(template)
    if not found.is_dir():
        raise InvalidInputError(f"template must be a directory, and {os.fspath(template)!r} is not one")
    return found
