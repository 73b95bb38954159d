"""The record of a kernel for a later host: nothing, unless the host has a custodian (`cellblock.host.survival`)."""

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
    """Output that does not come from the kernel.

    Attributes:
        name: The stream of the text.
        text: The text.
        ours: As for `CellEvents.emit`.
        kept: Whether it is part of the result.
        shown: A displayed value instead.
    """

    name: StreamName = "stderr"
    text: bytes = b""
    ours: bool = False
    kept: bool = True
    shown: Mapping[str, bytes] | None = None


class Recording:
    """Records what happens to one kernel, so that a later host can continue it. This one records nothing.

    Attributes:
        before_exit: Records how the worker has exited, before init's message about that is read.
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
        """Return the kernel's channel; see `Channel`. `write_base` has the kernel call `base`."""
        return Channel(ends, take, take_text, on_broken, behind)

    async def held(self, timeout: float) -> None:
        """Wait until the kernel survives this process.

        Raises:
            CustodianError: It did not happen within this many seconds.
        """

    def base(
        self, collector: Collector, cell: Cell | None, *, after_death: Recovery | None, count: int, cells: int, more: bool
    ) -> None:
        """Write the whole state, between two messages.

        Args:
            collector: The kernel's output.
            cell: The running cell, or the one that is about to begin.
            after_death: The recovery that its next result reports for the previous kernel, if that death was not reported yet.
            count: The number of its last execution.
            cells: How many cells it has begun.
            more: Whether a message to the worker follows at once.

        Raises:
            OSError: There is no room.
        """

    def write_extra(self, what: Extra) -> None:
        """Record output that does not come from the kernel."""

    def stopping(self, reason: Status | None, means: Recovery) -> None:
        """Record how a cell is being stopped."""

    def asked(self, question: Question) -> bool:
        """Remember the cell's request; return whether another process has handled it, perhaps."""
        return False

    def begun(self) -> None:
        """Record that handling the cell's request is about to begin."""

    def told(self, message: ToWorker) -> None:
        """Remember an answer to the cell's request."""

    def replaced(self) -> bool:
        """Record that it has died, and that another kernel is about to replace it; return whether that is recorded."""
        return False

    def close(self) -> None:
        """Drop what is recorded."""


NO_RECORDING = Recording()
