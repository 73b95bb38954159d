"""Blocks protected names for a session, and removes their placeholders while the session is idle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from cellblock.walls.sandbox import covers
from cellblock.walls.sandbox.covers import Covers
from cellblock.walls.sandbox.paths import is_inside
from cellblock.walls.sandbox.placeholders import Hold
from cellblock.wire.sandbox import Mask, Protect, Step


class Blocking:
    """The missing protected names of one session.

    While they are not blocked, the directories are read-only for the session. Linux enforces that for each of its processes
    and descriptors. Nothing needs to be stopped: code that runs anyway can create nothing.

    Attributes:
        lifted: Whether they are unblocked now.
    """

    def __init__(self, holds: Mapping[str, Hold], steps: Iterable[Step]) -> None:
        """Store the arguments.

        Args:
            holds: The holds on placeholders, by their directories.
            steps: The steps of the session's plan.
        """
        self._holds = holds
        self._steps = [
            step
            for step in steps
            if isinstance(step, Protect | Mask) and any(step.target != top and is_inside(step.target, top) for top in holds)
        ]
        self._own: frozenset[str] = frozenset()
        """Names that the session's code had made before: they are as its other files."""
        self._writable: list[int] = []
        self.lifted = False

    @property
    def useful(self) -> bool:
        """Whether there is anything to lift: outside of projects, there are no placeholders."""
        return any(hold.names for hold in self._holds.values())

    def lift(self) -> bool:
        """Make the directories read-only, and remove the placeholders. Return whether that was possible now.

        If another session needs the placeholders, the last one removes them.
        """
        own = frozenset(step.target for step in self._steps if covers.is_writable(step.target))
        try:
            for top in self._holds:
                self._writable += covers.close_directory(top)
        except OSError:  # a file is open for writing
            self._open()
            return False
        self._own, self.lifted = own, True
        self._release()
        return True

    def renew(self) -> None:
        """Block the names again, cover new files, and make the directories writable.

        Raises:
            OSError: It is not possible now. Nothing has changed for the session.
        """
        if not self.lifted:
            return
        try:
            for top, hold in self._holds.items():
                hold.renew(top)
            again = Covers([step for step in self._steps if step.target not in self._own], {}, again=True)
            again.look()
            again.cover_all()
        except BaseException:
            self._release()
            raise
        self._open()
        self.lifted = False

    def _release(self) -> None:
        for top, hold in self._holds.items():
            for name in hold.found():
                with suppress(OSError):  # then its placeholder stays as long as the session
                    covers.uncover(f"{top}/{name}")
            hold.release()

    def _open(self) -> None:
        covers.open_again(self._writable)
        self._writable = []
