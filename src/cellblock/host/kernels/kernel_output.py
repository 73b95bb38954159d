"""Distribution of a kernel's output to the collector, the running cell's reader, and the journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cellblock.errors import NO_NETWORK, NO_NETWORK_BY_LANDLOCK
from cellblock.host.kernels.cell import Cell
from cellblock.host.kernels.cell_result import Rights
from cellblock.host.kernels.recording import NO_RECORDING, Extra, Recording
from cellblock.host.launch.kernel_spec import DeathNotice, KernelSpec
from cellblock.host.output.collect import Collector
from cellblock.model import Recovery, StreamName
from cellblock.wire.messages import Display


class KernelOutput:
    """The output of a kernel's running cell, or since its last cell.

    Attributes:
        cell: The running cell, if any.
        collector: Collects the output.
        after_death: The recovery that the next result reports for the previous kernel, if its death is unreported.
        elsewhere: Takes the output instead, while the kernel works for another kernel.
        lacks: Lines about what the kernel lacks because it was made from a copy. The next cell shows them.
    """

    def __init__(self, wanted: KernelSpec, recording: Recording) -> None:
        """Start without output.

        Args:
            wanted: The kernel's specification.
            recording: Records output from outside the kernel.
        """
        self._wanted = wanted
        self._recording = recording
        self.cell: Cell | None = None
        self.collector = self._new_collector()
        self.after_death: Recovery | None = None
        self.elsewhere: Callable[[StreamName, bytes], None] | None = None
        self.lacks: list[str] = []

    def _new_collector(self) -> Collector:
        return Collector(self._wanted.limits, self._wanted.spill_to)

    # -- the running cell ----------------------------------------------------------------------------------------------

    def attach(self, cell: Cell, memory: int | None, pause: Callable[[bool], None]) -> None:
        """Set the running cell.

        Args:
            cell: The cell. It also receives output of background work since the last cell.
            memory: The kernel's memory limit in bytes, if any.
            pause: Pauses (True) or resumes the kernel's output.
        """
        wanted = self._wanted
        policy, tier = wanted.policy, wanted.tier
        offline = NO_NETWORK_BY_LANDLOCK if tier.ours and not tier.own_network else ""
        if tier.own_network and not (policy.network.allow or policy.network.ask):
            offline = NO_NETWORK
        for line in self.take_lacks():
            self.collector.add_text("stderr", f"{line}\n".encode())
        rights = Rights(memory, policy.resources.packages > 0, tier.sandboxed, offline)
        cell.attach(self.collector, rights=rights, after_death=self.after_death, pause=pause)
        self.cell = cell

    def take_lacks(self) -> list[str]:
        """Return the lines about what the kernel lacks, once."""
        lacks, self.lacks = self.lacks, []
        return lacks

    def show_so_far(self) -> None:
        """Show the running cell's reader the output from before the cell."""
        if self.cell is not None and self.cell.events.streaming:
            for shown, stream in self.collector.so_far():
                self.cell.events.emit(shown, stream)

    def detach(self) -> Cell | None:
        """Remove and return the running cell, if any, and start with empty output."""
        cell, self.cell = self.cell, None
        if cell is not None:
            if not cell.silent:
                self.after_death = None  # it was reported
            self.collector = self._new_collector()
        return cell

    def withdraw(self) -> None:
        """Withdraw the running cell, which was not sent. The next cell shows its output and reports."""
        self.cell = None

    def take_over(self, dead: KernelOutput, notice: DeathNotice) -> None:
        """Start with another kernel's last output and death notice."""
        ours, self.collector = self.collector, dead.collector
        self._add_notice(notice)
        for item in ours.items():
            self.collector.add_text(item.name or "stdout", (item.text or "").encode())

    def with_notice(self, notice: DeathNotice) -> KernelOutput:
        """Return the output for the next host in case this one is killed before `take_over`."""
        output = KernelOutput(self._wanted, NO_RECORDING)
        output._add_notice(notice)
        return output

    def _add_notice(self, notice: DeathNotice) -> None:
        self.collector.add_text("stderr", notice.text.encode())
        self.after_death = notice.recovery

    # -- from the kernel -----------------------------------------------------------------------------------------------

    def add_text(self, name: StreamName, text: bytes, *, ours: bool = False) -> None:
        """Handle text from the kernel. `ours` is as for `CellEvents.emit`."""
        if self.elsewhere is not None:
            self.elsewhere(name, text)
            return
        self.collector.add_text(name, text)
        if self.cell is not None and self.cell.events.streaming:
            self.cell.events.emit(text.decode("utf-8", "replace"), name, ours=ours)

    def add_display(self, message: Display) -> None:
        """Handle a displayed value."""
        bundle = self.collector.add_display(message)
        if bundle is not None and self.cell is not None:
            self.cell.events.show(bundle, message.kind)
        while self.collector.unsaid:
            self.add_text("stderr", f"{self.collector.unsaid.pop(0)}\n".encode(), ours=True)

    def clear(self, wait: bool) -> None:
        """Drop the output so far; with `wait`, when the next output arrives."""
        self.collector.clear(wait)
        if self.cell is not None:
            self.cell.events.clear(wait)

    # -- from elsewhere ------------------------------------------------------------------------------------------------

    def note(self, line: str) -> None:
        """Show a line from the host to the reader of the running or next cell."""
        self.add_extra(Extra(text=f"{line}\n".encode(), ours=True))

    def tell(self, line: str) -> None:
        """Show a line to the reader of the running cell's stream, but not in the result."""
        self.add_extra(Extra(text=f"{line}\n".encode(), ours=True, kept=False))

    def show(self, data: Mapping[str, bytes]) -> None:
        """Show a MIME bundle from outside the kernel to the reader of the running or next cell."""
        self.add_extra(Extra(shown=dict(data)))

    def insert(self, name: StreamName, text: bytes) -> None:
        """Add text from outside the kernel to the output of the running or next cell."""
        self.add_extra(Extra(name, text))

    def add_extra(self, extra: Extra) -> None:
        """Handle output from outside the kernel."""
        self._recording.write_extra(extra)
        if extra.shown is not None:
            self.add_display(Display("display_data", extra.shown))
        elif extra.kept:
            self.add_text(extra.name, extra.text, ours=extra.ours)
        elif self.cell is not None:
            self.cell.events.emit(extra.text.decode("utf-8", "replace"), extra.name, ours=extra.ours)
