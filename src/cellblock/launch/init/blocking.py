"""Blocks protected names for a session, and removes their placeholders while nothing of the session runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from cellblock.walls.sandbox import covers
from cellblock.walls.sandbox.covers import Covers
from cellblock.walls.sandbox.paths import is_inside
from cellblock.walls.sandbox.placeholders import Hold
from cellblock.wire.sandbox import Mask, Protect, Step


class Blocking:
    """The protected names of one session that do not exist.

    While they are not blocked, the directories are read-only for the session, which the system enforces for every process and
    descriptor of it. Nothing has to be stopped: what runs nevertheless can create nothing.

    Attributes:
        lifted: Whether they are not blocked now.
    """

    def __init__(self, holds: Mapping[str, Hold], steps: Iterable[Step]) -> None:
        """Describe what is blocked.

        Args:
            holds: The holds on placeholders, by the directories that they belong to.
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
        """Make the directories read-only, and remove the placeholders; return whether that was possible now.

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
        """Block the names again, cover all that has been made meanwhile, and make the directories writable.

        Raises:
            OSError: It cannot be done now. Nothing has changed for the session.
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
