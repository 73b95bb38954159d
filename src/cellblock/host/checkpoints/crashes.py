"""Recovery of a session from its last state when its kernel died."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Container
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from cellblock.errors import CheckpointError, LaunchError
from cellblock.host.kernels.exit_status import Restored

if TYPE_CHECKING:
    from cellblock.host.checkpoints.automatic import AutomaticCheckpoints
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.checkpoints.resuming import Resuming
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.kernels.pairs import Instant
    from cellblock.host.kernels.session_state import SessionState
    from cellblock.host.kernels.state_events import Way
    from cellblock.host.launch.kernel_spec import DeathNotice

_log = logging.getLogger("cellblock.sessions")
_RECOVERING = 5.0
"""Seconds after which no further checkpoint is tried after a crash: a copy that does not answer takes a minute."""


class States(Protocol):
    """The part of `Checkpoints` that recovery uses.

    Attributes:
        automatic: Automatic checkpoints.
        resuming: Creates kernels from checkpoints.
    """

    automatic: AutomaticCheckpoints
    resuming: Resuming

    @property
    def past(self) -> SessionState:
        """The session's state."""

    def all(self) -> list[Checkpoint]:
        """Return the usable checkpoints, oldest first."""

    def begin_going(self, checkpoint: str, way: Way, lost: int = 0) -> Instant:
        """Record, before any action, that the session is about to change to another state."""

    def go_to_memory_of(self, checkpoint: Checkpoint, began: Instant) -> None:
        """Record that the kernel continues from a checkpoint while files are unchanged."""


class Crashes:
    """Replaces the dead kernels of one session from its checkpoints.

    Attributes:
        lost: Number of cells that an earlier host found lost, because it had already continued from an earlier state.
    """

    def __init__(self, name: str, states: States) -> None:
        self._name = name
        self._states = states
        self._deadly: set[int] = set()
        """States in which something ends the kernel without a cell."""
        self._recovered: tuple[Kernel, int] | None = None
        """The last kernel made here, and its state."""
        self._why = ""
        """Why the last attempt to make a kernel failed."""
        self.lost = 0

    def last_state(self, dead: Kernel, failed: Container[int] = ()) -> Checkpoint | None:
        """Return the last state of a dead kernel from which the session can continue, if any.

        Args:
            dead: The kernel.
            failed: States from which no kernel could be created.
        """
        states = self._states
        line = {cell.number for cell in states.past.line}
        kept = [one for one in states.all() if one.moment.copy.family is dead.family and one.moment.state not in self._deadly]
        kept = [one for one in kept if one.moment.state not in failed]
        found = [one for one in kept if one.moment.is_of(line)]
        if not found or not states.automatic.wanted or dead.memory.hopeless:
            return None
        return max(found, key=lambda one: (len(one.moment.past), one.moment.state))

    async def recover(self, dead: Kernel) -> Kernel | None:
        """Create a kernel from the last usable state, or None.

        Raises:
            LaunchError: There is no room for a kernel now. The state is kept for the next attempt.
        """
        if self._recovered is not None and self._recovered[0] is dead and _has_ended_itself(dead):
            # Something in that state, such as a background task, kills the kernel. It would do so again.
            self._deadly.add(self._recovered[1])
        failed, began = set[int](), time.monotonic()
        while time.monotonic() - began < _RECOVERING and (checkpoint := self.last_state(dead, failed)) is not None:
            restored = self._restored(checkpoint, dead)
            if (kernel := await self.replace_kernel(checkpoint, restored, dead.notice(restored))) is not None:
                return kernel
            failed.add(checkpoint.moment.state)
        if (checkpoint := self.last_state(dead)) is None:
            return None
        raise LaunchError(
            f"the kernel of {self._name} died, and {self._why} Its state after cell {checkpoint.execution_count} is saved, "
            "and the next cell tries again: end processes of the session, or free memory"
        )

    def awaited(self, dead: Kernel) -> Restored | None:
        """Describe the state that the session restores once there is room for a kernel, or None."""
        checkpoint = self.last_state(dead)
        return None if checkpoint is None else replace(self._restored(checkpoint, dead), waits_for=self._why)

    def _restored(self, checkpoint: Checkpoint, dead: Kernel) -> Restored:
        # Effects of actions other than cells, such as `put`, are lost too.
        return self.restored(checkpoint, self._states.past.before if dead.death_reported else self._states.past.state)

    def restored(self, checkpoint: Checkpoint, reached: int) -> Restored:
        """Describe a recovery from a checkpoint. `reached` is the number of the later state that is lost."""
        lost = len(self._states.past.left_by(checkpoint.moment.past)) or int(checkpoint.moment.state != reached)
        lost, self.lost = max(lost, self.lost), 0
        return Restored(checkpoint.execution_count, lost)

    async def replace_kernel(self, checkpoint: Checkpoint, restored: Restored, notice: DeathNotice | None) -> Kernel | None:
        """Create a kernel in place of a dead one; None if that fails."""
        states = self._states
        began = states.begin_going(checkpoint.id, "crash", restored.lost)
        try:
            kernel = await states.resuming.resume(checkpoint, notice=notice)
        except (CheckpointError, LaunchError) as error:
            _log.info("%s: no kernel could be made of %r: %s", self._name, checkpoint, error)
            self.lost, self._why = restored.lost, f"{str(error).partition('. ')[0]}."
            return None
        states.go_to_memory_of(checkpoint, began)
        states.automatic.forget_files()
        states.automatic.turn_ended()
        kernel.restored = restored
        kernel.memory.look_first()
        self._recovered = kernel, checkpoint.moment.state
        return kernel


def _has_ended_itself(dead: Kernel) -> bool:
    """Return whether a kernel ended without a cell and was not killed."""
    return dead.cells == 0 and dead.death is not None and dead.death.exit_status not in (None, -signal.SIGKILL)
