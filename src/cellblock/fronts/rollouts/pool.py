"""`Pool`: rollouts with a limit on concurrency. Each is admitted in order, created once, and always ended."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from shutil import Error, copytree
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from cellblock.common.tasks import despite_cancellation
from cellblock.errors import ConflictError, InvalidInputError, LaunchError, StateError, shown
from cellblock.fronts.executor.executor import CodeExecutor
from cellblock.fronts.rollouts.rollout import Lifetime, Rollout, check_template
from cellblock.fronts.rollouts.trajectory import Trajectory
from cellblock.host import shared
from cellblock.host.checkpoints.checkpoint import Beginning, Checkpoint
from cellblock.host.closing import AsyncOnly
from cellblock.host.place import SessionPlace

if TYPE_CHECKING:
    from cellblock.host import Host

_log = logging.getLogger("cellblock.rollouts")
_T = TypeVar("_T")

_ATTEMPTS, _MOMENT = 3, 0.1
"""Attempts to start a session, and the seconds between the first two; then twice as many each time."""

_places = itertools.count(1)

_SEED = (
    "(lambda seed: (__import__('random').seed(seed), [module.seed(seed % 2**32) for module in "
    "[__import__('sys').modules.get('numpy.random')] if module], [module.manual_seed(seed) for module in "
    "[__import__('sys').modules.get('torch')] if module]))({seed!r})"
)

_CLOCK = "__import__('time_machine').travel({seconds!r}, tick=True).start()"


class _Begin(NamedTuple):
    """The parameters of one rollout."""

    key: str
    seed: int | None
    clock: datetime | None
    labels: Mapping[str, str]


def _check_limits(size: object, lifetime: object, idle: object) -> None:
    """Validate the limits of a pool.

    Raises:
        InvalidInputError: A limit is not a number, or too small.
    """
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InvalidInputError(f"size must be a number of rollouts, not {shown(size)}")
    for name, seconds in (("lifetime", lifetime), ("idle", idle)):
        if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0):
            raise InvalidInputError(f"{name} must be a positive number of seconds, or None, not {shown(seconds)}")


class Pool(AsyncOnly):
    """A pool of rollouts for evaluations and reinforcement learning, each in a sandbox with its own files.

    An async context manager::

        async with Pool(8, preload=["pandas"], lifetime=600) as pool:
            async with pool.rollout("task-17", seed=17) as rollout:
                await rollout.execute("answer = 6 * 7")
                verdict = await rollout.exec(["/usr/bin/python3", "-I", "/verify.py"])
                rollout.trajectory.note(reward=float(verdict.ok))

    Everything ends with this process, even if it is killed.
    """

    def __init__(
        self,
        size: int = 4,
        *,
        start_from: Checkpoint | str | os.PathLike[str] | None = None,
        template: str | os.PathLike[str] | None = None,
        labels: Mapping[str, str] | None = None,
        lifetime: float | None = None,
        idle: float | None = None,
        trajectories: str | os.PathLike[str] | None = None,
        host: Host | None = None,
        **options: Any,
    ) -> None:
        """Configure a pool without starting it.

        Args:
            size: The maximum number of concurrent rollouts. Others wait, and are admitted in order.
            start_from: The initial state of each rollout: a saved session's file (`CodeExecutor.save`), or a checkpoint
                made with ``files="copy"``. Rollouts from a checkpoint take 10 ms, and share the sandbox of its session: its
                network, its processes and /tmp. By default, each rollout starts with a fresh kernel.
            template: A directory that is copied as the initial files of each rollout. Excludes `start_from`.
            labels: Labels of the trajectories.
            lifetime: Seconds from admission to the end of a rollout, set-up and scoring included; None for no limit.
            idle: Seconds of inactivity after which a rollout is ended; None for no limit.
            trajectories: A file to which the trajectory of each rollout is appended when it ends.
            host: The host, which stays open; by default a shared one.
            options: Options of `CodeExecutor`, except `working_dir`: each rollout has a directory of its own.

        Raises:
            InvalidInputError: An argument is invalid.
        """
        _check_limits(size, lifetime, idle)
        if "working_dir" in options:
            raise InvalidInputError("each rollout has a directory of its own; template= names the files that it begins with")
        if template is not None and start_from is not None:
            raise InvalidInputError("pass template or start_from, not both: a saved session or checkpoint has its own files")
        if isinstance(start_from, Checkpoint) and start_from.snapshot is None:
            raise InvalidInputError("start_from needs a checkpoint with files: checkpoint(files='copy')")
        self._start_from = start_from
        self._template = check_template(template)
        self._labels = dict(labels or {})
        self._lifetime, self._idle = lifetime, idle
        self._trajectories = trajectories
        self._host = host
        self._options = {"recovery": "none", "host": host, **options}
        CodeExecutor(**self._options)  # the constructor validates them
        self._room = asyncio.Semaphore(size)
        self._state: dict[str, str] = {}
        self._shared: dict[str, asyncio.Task[Any]] = {}
        self._numbers = 0
        self._closed = False
        self.waiting = 0
        """How many wait to be admitted."""
        self.running = 0
        """How many there are now."""
        self.ended = 0
        """How many have ended."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End everything started by `run`, and admit no more rollouts. The operation is idempotent."""
        self._closed = True
        for task in self._shared.values():
            task.cancel()
        if pending := [task for task in self._shared.values() if not task.done()]:
            await asyncio.wait(pending)

    async def run(
        self,
        work: Callable[[Rollout], Awaitable[_T]],
        key: str,
        *,
        seed: int | None = None,
        clock: datetime | None = None,
        labels: Mapping[str, str] | None = None,
        lifetime: float | None = None,
    ) -> _T:
        """Call a function with a rollout, once for each key: repeated and concurrent calls get the same result.

        Args:
            work: The coroutine function to call with the rollout.
            key: The key of the rollout.
            seed: As for `rollout`.
            clock: As for `rollout`.
            labels: As for `rollout`.
            lifetime: As for `rollout`.

        Returns:
            The result of `work`. Its exception is raised for all callers.
        """

        async def once() -> _T:
            async with self.rollout(key, seed=seed, clock=clock, labels=labels, lifetime=lifetime) as rollout:
                return await work(rollout)

        self._check_open()
        if key not in self._shared:
            self._shared[key] = asyncio.create_task(once())
            self._shared[key].add_done_callback(_mark)
        return await asyncio.shield(self._shared[key])

    @asynccontextmanager
    async def rollout(
        self,
        key: str = "",
        *,
        seed: int | None = None,
        clock: datetime | None = None,
        labels: Mapping[str, str] | None = None,
        lifetime: float | None = None,
    ) -> AsyncIterator[Rollout]:
        """Create a rollout when there is room, and end it with the ``async with`` block.

        Args:
            key: The unique key of the rollout in the pool; a number by default.
            seed: The seed of random numbers: of `random`, and of NumPy and PyTorch if they are preloaded.
            clock: The time at which the code's clock starts. The sessions' Python needs the package time-machine. It makes
                tests repeatable, and is no security boundary: code can revert it.
            labels: Additional labels of the trajectory.
            lifetime: Seconds from admission to the end, instead of the pool's.

        Raises:
            ConflictError: The key was already used.
            TimeoutError: The lifetime or the idle limit ended the rollout.
            LaunchError: Its session failed to start three times.
            InvalidInputError, StateError: An argument is invalid; the pool is closed.
        """
        self._check_open()
        key = self._begin(key)
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
            raise InvalidInputError(f"seed must be an integer, not {shown(seed)}")
        if clock is not None and (not isinstance(clock, datetime) or clock.tzinfo is None):
            raise InvalidInputError(f"clock must be a datetime with a time zone, not {shown(clock)}")
        self.waiting += 1
        try:
            await self._room.acquire()
        except BaseException:  # a cancellation: it never ran
            del self._state[key]
            raise
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            self._check_open()
            limit = self._lifetime if lifetime is None else lifetime
            life = Lifetime(limit, self._idle)
            beginning = _Begin(key, seed, clock, {**self._labels, **(labels or {})})
            async with life.run(key, limit), self._made(beginning, life) as rollout:
                yield rollout
        finally:
            self._state[key] = "has run"
            self.running -= 1
            self.ended += 1
            self._room.release()

    def forget(self, key: str) -> None:
        """Delete the key of a rollout that has ended, so that it can be used again."""
        if self._state.get(key) == "has run":
            del self._state[key]
            self._shared.pop(key, None)

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("the pool is closed")

    def _begin(self, key: str) -> str:
        if not isinstance(key, str):
            raise InvalidInputError(f"key must be a string, not {shown(key)}")
        if not key:
            self._numbers += 1
            key = f"rollout-{self._numbers}"
        if (state := self._state.get(key)) is not None:
            again = "; forget(key) lets it run again" if state == "has run" else ""
            raise ConflictError(f"rollout {key!r} {state} already{again}")
        self._state[key] = "runs"
        return key

    @asynccontextmanager
    async def _made(self, begin: _Begin, life: Lifetime) -> AsyncIterator[Rollout]:
        trajectory = Trajectory()
        began = time.perf_counter()
        status, reason = "failed", ""
        place: SessionPlace | None = None
        executor: CodeExecutor | None = None
        host: Host | None = None
        try:
            host = self._host or await shared.acquire()
            if not isinstance(self._start_from, Checkpoint):
                # Next to the host's own directories, which are removed after it, even if it is killed.
                place = SessionPlace(f"{host.keeper.places}rollout-{next(_places)}")
                place.make()
                if self._template is not None:
                    await asyncio.to_thread(_copy_template, self._template, place.path)
            executor = await self._start(place, begin)
            said = {"clock": begin.clock.isoformat()} if begin.clock is not None else {}
            boot = round(time.perf_counter() - began, 6)
            trajectory.add("begin", key=begin.key, labels=dict(begin.labels), seed=begin.seed, **said, boot=boot)
            executor.session.watch(trajectory)
            if executor.services is not None:
                trajectory.calls_since = executor.session.succession.outside
            rollout = Rollout(begin.key, begin.seed, begin.labels, executor, life, trajectory)
            await rollout.remember_files()
            yield rollout
            await rollout.look_at_files()
            status = "ended"
        except BaseException as error:  # also a cancellation
            reason = f"{type(error).__name__}: {error}"
            raise
        finally:
            trajectory.add("end", status=status, reason=reason)
            await despite_cancellation(asyncio.create_task(self._end(executor, place, trajectory, host)))

    async def _start(self, place: SessionPlace | None, begin: _Begin) -> CodeExecutor:
        """Start an executor. A failed start is retried, because nothing has run yet."""
        for attempt in range(1, _ATTEMPTS + 1):
            given: dict[str, Any] = {} if place is None else {"working_dir": place.path}
            executor = CodeExecutor(**self._options, **given)
            try:
                await self._begin_with(executor, begin.seed)
                if begin.clock is not None:
                    await _set_clock(executor, begin.clock)
            except LaunchError as error:
                await executor.stop()
                if attempt == _ATTEMPTS:
                    raise
                _log.warning("a rollout's session could not be started, and is tried again: %s", error)
                await asyncio.sleep(_MOMENT * 2 ** (attempt - 1))
            except BaseException:
                await despite_cancellation(asyncio.create_task(executor.stop()))
                raise
            else:
                return executor
        raise AssertionError("the last attempt returns or raises")

    async def _begin_with(self, executor: CodeExecutor, seed: int | None) -> None:
        start_from = self._start_from
        if isinstance(start_from, Checkpoint):
            executor.beginning = Beginning(start_from, "copy", seed)
            await executor.start()
            return
        await executor.start()
        if start_from is not None:
            await executor.load(start_from, workspace=True)
        if seed is not None:
            await executor.session.execute(_SEED.format(seed=seed), silent=True)

    async def _end(
        self, executor: CodeExecutor | None, place: SessionPlace | None, trajectory: Trajectory, host: Host | None
    ) -> None:
        try:
            if executor is not None:
                await executor.stop()
        finally:
            if place is not None:
                await place.remove()
            if self._trajectories is not None:
                await asyncio.to_thread(trajectory.write, self._trajectories)
            if host is not None and self._host is None:
                shared.release(host)


async def _set_clock(executor: CodeExecutor, clock: datetime) -> None:
    result = await executor.session.execute(_CLOCK.format(seconds=clock.timestamp()), silent=True)
    if result.error is not None:
        raise InvalidInputError(
            f"clock= needs the package time-machine in the Python of the sessions: {result.error.ename}: {result.error.evalue}"
        )


def _mark(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # mark as retrieved: all callers may have gone


def _copy_template(template: Path, place: str) -> None:
    """Copy the initial files of a rollout.

    Raises:
        InvalidInputError: A file cannot be copied.
    """
    try:
        copytree(template, place, symlinks=True, dirs_exist_ok=True)
    except Error as error:
        path, _, why = error.args[0][0]
        raise InvalidInputError(f"the template cannot be copied: {path}: {why}") from error
