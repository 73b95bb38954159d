"""The record of a kernel for a later host; a null object without a custodian (`cellblock.host.survival`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from cellblock.host.kernels.cell import Cell
from cellblock.host.kernels.channel import Channel
from cellblock.host.launch.launcher import Ends
from cellblock.host.output.collect import Collector
from cellblock.model import Recovery, Status, StreamName
from cellblock.wire.messages import Command, InputRequest, Install, ToHost, ToWorker

Question: TypeAlias = InputRequest | Install | Command


@dataclass(frozen=True)
class Extra:
    """Output from outside the kernel.

    Attributes:
        name: The stream of the text.
        text: The text.
        ours: As for `CellEvents.emit`.
        kept: Whether it is part of the result.
        shown: A displayed value instead of text.
    """

    name: StreamName = "stderr"
    text: bytes = b""
    ours: bool = False
    kept: bool = True
    shown: Mapping[str, bytes] | None = None


class Recording:
    """A null recorder of one kernel's events for a later host.

    Attributes:
        before_exit: Records the worker's exit, before init's message about it is read.
        lasting: Whether the kernel outlives this process.
    """

    before_exit: Callable[[int], None] | None = None
    lasting = False

    def channel(
        self,
        ends: Ends,
        take: Callable[[ToHost], None],
        take_text: Callable[[StreamName, bytes], None],
        on_broken: Callable[[str], None],
        behind: Callable[[], bool],
        write_base: Callable[[], None],
    ) -> Channel:
        """Return the kernel's channel (`Channel`). `write_base` makes the kernel call `base`."""
        return Channel(ends, take, take_text, on_broken, behind)

    async def held(self, timeout: float) -> None:
        """Wait until the kernel survives this process.

        Raises:
            CustodianError: The time limit in seconds was exceeded.
        """

    def base(
        self, collector: Collector, cell: Cell | None, *, after_death: Recovery | None, count: int, cells: int, more: bool
    ) -> None:
        """Write the whole state between two messages.

        Args:
            collector: The kernel's output.
            cell: The running cell, or the one about to begin.
            after_death: The recovery that its next result reports for the previous kernel, if its death is unreported.
            count: The number of its last execution.
            cells: Number of cells begun.
            more: Whether a message to the worker follows at once.

        Raises:
            OSError: There is no room.
        """

    def write_extra(self, what: Extra) -> None:
        """Record output from outside the kernel."""

    def stopping(self, reason: Status | None, means: Recovery) -> None:
        """Record how a cell is being stopped."""

    def asked(self, question: Question) -> bool:
        """Record the cell's request. Return whether another process may have handled it."""
        return False

    def begun(self) -> None:
        """Record that the handler of the cell's request is about to begin."""

    def told(self, message: ToWorker) -> None:
        """Record an answer to the cell's request."""

    def replaced(self) -> bool:
        """Record that the kernel died and is about to be replaced. Return whether that was recorded."""
        return False

    def close(self) -> None:
        """Drop the record."""


NO_RECORDING = Recording()
