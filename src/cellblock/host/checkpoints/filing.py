"""Automatic file snapshots, at the end of a cell or while a session is idle."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from cellblock.errors import SnapshotError

if TYPE_CHECKING:
    from cellblock.host.checkpoints.workspace_snapshots import CheckpointFiles
    from cellblock.host.snapshots import Snapshot

_AFTER = 0.1
"""Seconds of idleness before files are examined: that takes tens of milliseconds, in which the loop is slower."""

_READING, _AT_LEAST = 0.025, 200
"""Seconds that the next cell waits for files to be read, and the minimum of files to read; of others, only the metadata."""

_PATIENCE, _LOOK_AGAIN = 2.0, 0.1
"""Seconds that a request waits for files to be examined, and between checks whether one waits."""

_AT_ONCE = "the next cell began before they could be saved"


def _ignore(_: str) -> None:
    """Ignore the reason."""


class Filing:
    """Takes automatic snapshots of one session's directory.

    Attributes:
        skipped: Why the last snapshot failed; empty if it succeeded.
        awaited: Number of callers that wait for a snapshot.
    """

    def __init__(self, files: CheckpointFiles) -> None:
        self.skipped = ""
        self._files = files
        self._activity = 0
        """Counts beginnings and ends of actions that may change files."""
        self._task: asyncio.Task[Snapshot | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._begin: Callable[[], None]
        """What the timer calls; set with it."""
        self.awaited = 0

    def stop(self) -> None:
        """Cancel the snapshot: an action that may change files begins or ends."""
        self._activity += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- at once -------------------------------------------------------------------------------------------------------

    def keep(self) -> asyncio.Task[Snapshot | None]:
        """Start a snapshot now. `result` waits for it."""
        self.skipped = _AT_ONCE
        self._task = asyncio.create_task(self._take(self._activity, self._task))
        return self._task

    async def result(self, task: asyncio.Task[Snapshot | None]) -> Snapshot | None:
        """Wait for a snapshot, which the caller then owns. Return None if it fails, or a request waits too long."""
        until = math.inf
        while not task.done() and time.monotonic() < until:
            await asyncio.wait([task], timeout=_LOOK_AGAIN)
            if self.awaited and until == math.inf:
                until = time.monotonic() + _PATIENCE
        if task.done():
            return task.result()
        self.stop()
        task.add_done_callback(self._drop_late)
        self.skipped = f"a snapshot of the files would take more than {_PATIENCE:g} s"
        return None

    async def now(self) -> Snapshot | None:
        """Take a snapshot while a request waits. The caller owns it. Return None if it fails or takes too long."""
        task = self.keep()
        self.awaited += 1
        try:
            return await self.result(task)
        except BaseException:  # cancelled: no caller takes the snapshot
            task.add_done_callback(self._drop_late)
            raise
        finally:
            self.awaited -= 1

    def _drop_late(self, task: asyncio.Task[Snapshot | None]) -> None:
        if not task.cancelled() and (files := task.result()) is not None:
            self._files.drop(files)

    async def _take(self, begun: int, before: asyncio.Task[Snapshot | None] | None) -> Snapshot | None:
        if before is not None and not before.done():
            await asyncio.wait([before])
        until, asked = time.monotonic() + _READING, itertools.count()

        def hurry() -> bool:
            return next(asked) >= _AT_LEAST and self.awaited > 0 and time.monotonic() > until

        try:
            snapshot = await self._files.take_small(lambda: self._activity != begun, hurry)
        except (SnapshotError, RuntimeError) as error:  # for example, no thread can be started
            self.skipped = str(error)
            return None
        if snapshot is not None:
            self.skipped = ""
        return snapshot

    # -- while the session is idle -------------------------------------------------------------------------------------

    def begin(self, hold: Callable[[Snapshot], None], miss: Callable[[str], None] = _ignore) -> None:
        """Start a snapshot after an idle moment, unless `stop` cancels it.

        Args:
            hold: Takes the snapshot.
            miss: Takes the reason for a failure, for example that a file is too large.
        """
        self.skipped = _AT_ONCE
        begun = self._activity

        def begin() -> None:
            self._timer = None
            self.keep().add_done_callback(end)

        def end(task: asyncio.Task[Snapshot | None]) -> None:
            if task.cancelled():
                return
            if (files := task.result()) is None:
                miss(self.skipped)
            elif self._activity == begun:
                hold(files)
            else:
                self._files.drop(files)

        # Not a sleeping task: Python complains about pending tasks when a program drops its event loop.
        self._begin = begin
        self._timer = asyncio.get_running_loop().call_later(_AFTER, begin)

    async def hasten(self) -> None:
        """Start the pending idle snapshot now, and wait for it."""
        if self._timer is not None:
            self._timer.cancel()
            self._begin()
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Cancel and drop everything. Idempotent."""
        self.stop()
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
