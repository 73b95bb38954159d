"""Files that are kept automatically, while a session waits for its next cell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from cellblock.errors import SnapshotError
from cellblock.model.checkpoints import Changes

if TYPE_CHECKING:
    from cellblock.host.checkpoints.files import CheckpointFiles
    from cellblock.snapshots import Snapshot
    from cellblock.snapshots.times import Spans

_AFTER = 0.1
"""Seconds until files are looked at: that takes tens of milliseconds, in which the loop is slower."""

_AT_ONCE = "the next cell came before they could be kept"


def _ignore(_: str) -> None:
    """Nobody asks later."""


class Filing:
    """Keeps the files of one session's directory. No cell waits for this: the next one makes it give up.

    Attributes:
        skipped: Why none were kept the last time; empty if they were.
    """

    def __init__(self, files: CheckpointFiles) -> None:
        """Keep nothing yet.

        Args:
            files: The files.
        """
        self.skipped = ""
        self._files = files
        self._activity = 0
        """How often something has begun or ended that may change files"""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._first: Snapshot | None = None
        """As they were before the first cell"""

    def stop(self) -> None:
        """Take note that something begins, or ends, that may change files."""
        self._activity += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin(self, hold: Callable[[Snapshot], None], miss: Callable[[str], None] = _ignore) -> None:
        """Begin to keep the files, if they are the session's own.

        Args:
            hold: Takes them.
            miss: Takes the reason if they cannot be kept, such as that one is too large.
        """
        if self._files.automatic:
            self.skipped = _AT_ONCE
            # Not a task that sleeps: Python complains about tasks that are left when a program drops its event loop.
            self._timer = asyncio.get_running_loop().call_later(_AFTER, self._begin, hold, miss)

    def _begin(self, hold: Callable[[Snapshot], None], miss: Callable[[str], None]) -> None:
        self._timer = None
        self._task = asyncio.create_task(self._keep(hold, miss, self._activity, self._task))

    async def _keep(
        self, hold: Callable[[Snapshot], None], miss: Callable[[str], None], begun: int, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None and not before.done():
            before.cancel()
            await asyncio.wait([before])
        try:
            snapshot = await self._files.take_small(lambda: self._activity != begun)
        except SnapshotError as error:
            self.skipped = str(error)
            miss(self.skipped)
            return
        if snapshot is not None:
            self.skipped = ""
            hold(snapshot)

    # -- before the first cell -----------------------------------------------------------------------------------------

    def begin_first(self) -> None:
        """Begin to keep the files as they are before the first cell, if that does not come at once."""
        self.drop_first()
        self.begin(self._hold_first)

    def _hold_first(self, snapshot: Snapshot) -> None:
        self.drop_first()
        self._first = snapshot

    def take_first(self) -> Snapshot | None:
        """Return the files as they were before the first cell, which are the caller's from then on."""
        first, self._first = self._first, None
        return first

    def drop_first(self) -> None:
        """Forget them."""
        if (first := self.take_first()) is not None:
            self._files.drop(first)

    async def bring_back(self, first: Snapshot | None, within: Spans | None) -> tuple[Changes, str]:
        """Bring back the files that `take_first` has returned, after the kernel was replaced by a fresh one.

        Args:
            first: The files.
            within: Replace and remove only what was last changed in these spans of time.

        Returns:
            What was done, and why the files stay, if they do.
        """
        if first is None:
            return Changes(), self.skipped or "no files were kept before the first cell"
        self.stop()
        self._hold_first(first)  # these are the present files again, except for what stays
        try:
            changes = await self._files.restore(first, _nothing, within=within)
        except SnapshotError as error:
            return Changes(), str(error)
        self.begin(self._hold_first)
        return changes, ""

    async def close(self) -> None:
        """Give up, and forget everything. It can be repeated."""
        self.stop()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        self.drop_first()


async def _nothing() -> None:
    """Nothing is left to do when the files are back."""
