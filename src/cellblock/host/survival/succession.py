"""Continuation of sessions across hosts, for services whose sessions outlive their process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoints import Checkpoints
    from cellblock.host.kernels.kernel_slot import KernelSlot
    from cellblock.host.survival.keeper import SessionKeeper


class Succession:
    """The state that a session takes over from an earlier host and leaves to a later one."""

    def __init__(self, keeper: SessionKeeper, kernels: KernelSlot, checkpoints: Checkpoints) -> None:
        """Store the session's parts.

        Args:
            keeper: Preserves the session for a later host.
            kernels: Its kernels.
            checkpoints: Its checkpoints.
        """
        self._keeper = keeper
        self._kernels = kernels
        self._checkpoints = checkpoints

    # -- from an earlier host ------------------------------------------------------------------------------------------

    @property
    def adopted(self) -> bool:
        """Whether the session continues an earlier host's kernel."""
        return self._keeper.adopted

    @property
    def adopted_at(self) -> str:
        """The `position` of that kernel; empty if there was none."""
        return self._keeper.adopted_at

    @property
    def afresh(self) -> bool:
        """Whether the session's kernel started without variables, not from a checkpoint."""
        kernel = self._kernels.current
        return kernel is None or not kernel.of_copy

    @property
    def all_lost(self) -> bool:
        """Whether a fresh kernel replaced a dead one, because the last state was lost too."""
        kernel = self._kernels.current
        return kernel is not None and kernel.all_lost

    @property
    def states_lost(self) -> bool:
        """Whether the session continues an earlier host's kernel whose checkpoints are lost."""
        return bool(self._checkpoints.ended)

    @property
    def recalled(self) -> bool:
        """Whether the session's history includes cells of earlier hosts."""
        return self._checkpoints.past.recalled

    # -- for a later host ----------------------------------------------------------------------------------------------

    def relabel(self, label: str) -> None:
        """Change the session's label for a later host (`Host.session`). No later host continues a closed session."""
        self._keeper.relabel(label)

    def note_outside(self, call: str) -> None:
        """Record an external call that was just approved, so that a later host can list it as not undoable."""
        self._checkpoints.note_outside(call)

    def outside(self, since: float) -> list[str]:
        """Return the external calls approved since a time (`time.monotonic`), oldest first."""
        return self._checkpoints.outside(since)
