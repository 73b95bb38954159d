"""Messages of a session's services for the reader of its output."""

from __future__ import annotations

from collections.abc import Mapping

from cellblock.host.kernels.cell_events import Notice
from cellblock.host.kernels.cells import Cells
from cellblock.host.kernels.kernel_slot import KernelSlot


class Reader:
    """The reader of one session's output, if any."""

    def __init__(self, cells: Cells, kernels: KernelSlot) -> None:
        self._cells = cells
        self._kernels = kernels

    @property
    def running(self) -> bool:
        """Whether a cell is running."""
        cell = self._cells.current
        return cell is not None and not cell.ended.is_set()

    def notify(self, about: object) -> bool:
        """Queue a `Notice` for the reader of the running cell's stream.

        Returns:
            Whether there is a reader.
        """
        cell = self._cells.current
        if cell is None or not cell.followed or not self.running:
            return False
        cell.events.notify(Notice(about))
        return True

    def retract(self, about: object) -> None:
        """Withdraw an unread argument of `notify`."""
        if (cell := self._cells.current) is not None:
            cell.events.retract(about)

    def tell(self, line: str) -> None:
        """Show a line to the reader of the running cell's stream, but not in the result."""
        if (kernel := self._kernels.current) is not None and self.running:
            kernel.output.tell(line)

    def note(self, line: str) -> None:
        """Show a line in the output of the running or next cell."""
        if (kernel := self._kernels.current) is not None:
            kernel.output.note(line)

    def show(self, data: Mapping[str, bytes]) -> None:
        """Show a MIME bundle in the output of the running or next cell."""
        if (kernel := self._kernels.current) is not None:
            kernel.output.show(data)
