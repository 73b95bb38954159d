"""How a session continues one of an earlier host: for services whose sessions outlive their process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoints import Checkpoints
    from cellblock.host.kernels.cell_events import Event
    from cellblock.host.kernels.cells import Cells
    from cellblock.host.kernels.kernel_slot import KernelSlot
    from cellblock.host.survival.keeper import SessionKeeper
    from cellblock.model import CodeExecutionResult


class Succession:
    """The state that a session takes over from an earlier host, and that it leaves to a later one."""

    def __init__(self, keeper: SessionKeeper, cells: Cells, kernels: KernelSlot, checkpoints: Checkpoints) -> None:
        """Take parts of a session.

        Args:
            keeper: Keeps the session for a later host.
            cells: Its cells.
            kernels: Its kernels.
            checkpoints: Its checkpoints.
        """
        self._keeper = keeper
        self._cells = cells
        self._kernels = kernels
        self._checkpoints = checkpoints

    # -- of an earlier host --------------------------------------------------------------------------------------------

    @property
    def adopted(self) -> bool:
        """Whether the session continues a kernel of an earlier host."""
        return self._keeper.adopted

    @property
    def adopted_at(self) -> str:
        """The `position` of that kernel; empty if there was none."""
        return self._keeper.adopted_at

    @property
    def afresh(self) -> bool:
        """Whether the session's kernel started without variables, and was not made from a checkpoint."""
        kernel = self._kernels.current
        return kernel is None or not kernel.of_copy

    @property
    def all_lost(self) -> bool:
        """Whether the session's kernel is a fresh one, because the last one has died with all that it could be made from."""
        kernel = self._kernels.current
        return kernel is not None and kernel.all_lost

    @property
    def states_lost(self) -> bool:
        """Whether the session continues with a kernel of an earlier host whose checkpoints are lost."""
        return bool(self._checkpoints.ended)

    @property
    def recalled(self) -> bool:
        """Whether the session's history has the cells of earlier hosts."""
        return self._checkpoints.record.recalled

    @property
    def resumed(self) -> str | None:
        """The tag of an earlier host's last execution, running or ended; None if there is nothing to `resume`."""
        return self._cells.resumed

    async def resume(self, skip: int = 0) -> AsyncGenerator[Event | CodeExecutionResult, None]:
        """Yield the output and the result of an earlier host's execution, as its `stream` would have. Once only.

        By asking for the next event, a reader acknowledges the one before. If it stored every event before asking for the next
        one, then `skip`, the number of stored events, makes this continue exactly where it was. An execution without a stream
        yields only its result.

        Args:
            skip: How many output events to skip, from the beginning. Notices are not counted (`Notice`).

        Yields:
            As `Session.stream`.

        Raises:
            StateError: There is nothing to resume.
        """
        async with aclosing(self._cells.resume(skip)) as events:
            async for event in events:
                yield event

    def forgo_resuming(self) -> None:
        """Let an earlier host's execution run to its end without a reader: otherwise its kernel would wait for one forever."""
        self._cells.forgo_resuming()

    # -- for a later host ----------------------------------------------------------------------------------------------

    def relabel(self, label: str) -> None:
        """Change the session's label for a later host that continues it; see `Host.session`.

        No later host continues a closed session.
        """
        self._keeper.relabel(label)

    def note_outside(self, call: str) -> None:
        """Record an outside call that was allowed just now, so that a later host can tell what no undo undoes."""
        self._checkpoints.note_outside(call)
