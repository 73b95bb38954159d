"""Null keepers, for hosts without a custodian. `Keeping` is the implementation for hosts with one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellblock.host.launch.fork_server import ForkServer
from cellblock.host.launch.launcher import Boot
from cellblock.host.place import Places

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from cellblock.host.checkpoints.branches import BranchDirectory
    from cellblock.host.checkpoints.checkpoints import Checkpoints
    from cellblock.host.kernels.cell import Cell, OnInput
    from cellblock.host.kernels.cells import Cells
    from cellblock.host.kernels.channel import Recording
    from cellblock.host.kernels.family import Family
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.kernels.kernel_slot import KernelSlot
    from cellblock.host.launch.kernel_spec import KernelSpec
    from cellblock.host.launch.launcher import Ends
    from cellblock.host.launch.session_listeners import SessionListeners
    from cellblock.host.snapshots import Store
    from cellblock.host.survival.remains import KernelRemains, SessionRemains
    from cellblock.walls.keys.session_keys import SessionKeys


@dataclass(frozen=True)
class SessionParts:
    """The parts of a session that its preservation uses.

    Attributes:
        number: Its number, from the host.
        place: Path prefix of its directories.
        env: The environment of its kernels.
        branch: The directory of its files, if it is not the sandbox's workspace.
        wanted: The specification of its kernels.
        cells: Its cells.
        kernels: Its kernels.
        checkpoints: Its checkpoints.
        recover: Continues a killed host's kernel (`Kernels.recover`).
        listeners: The listeners of its sandboxes.
        keys: Its secrets, if it has any.
    """

    number: int
    place: str
    env: Mapping[str, str]
    branch: BranchDirectory | None
    wanted: KernelSpec
    cells: Cells
    kernels: KernelSlot
    checkpoints: Checkpoints
    recover: Callable[[KernelRemains, KernelSpec, OnInput | None], Awaitable[tuple[Kernel, Cell | None] | None]]
    listeners: SessionListeners
    keys: SessionKeys | None = None


class SessionKeeper:
    """A null keeper of one session: it neither preserves it for a later host nor continues an earlier host's.

    Services, whose sessions outlive their process, ask it what the session has taken over.

    Attributes:
        adopted: Whether the session continues an earlier host's kernel.
        adopted_at: The `position` of that kernel; empty if there was none.
    """

    adopted = False
    adopted_at = ""

    def __init__(self, parts: SessionParts) -> None:
        self._parts = parts
        self._checkpoints = parts.checkpoints

    @property
    def afresh(self) -> bool:
        """Whether the session's kernel started without variables, not from a checkpoint."""
        kernel = self._parts.kernels.current
        return kernel is None or not kernel.of_copy

    @property
    def all_lost(self) -> bool:
        """Whether a fresh kernel replaced a dead one, because the last state was lost too."""
        kernel = self._parts.kernels.current
        return kernel is not None and kernel.all_lost

    @property
    def states_lost(self) -> bool:
        """Whether the session continues an earlier host's kernel whose checkpoints are lost."""
        return bool(self._checkpoints.ended)

    @property
    def recalled(self) -> bool:
        """Whether the session's history includes cells of earlier hosts."""
        return self._checkpoints.past.recalled

    def note_outside(self, call: str) -> None:
        """Record an external call that was just approved, so that a later host can list it as not undoable."""
        self._checkpoints.note_outside(call)

    def outside(self, since: float) -> list[str]:
        """Return the external calls approved since a time (`time.monotonic`), oldest first."""
        return self._checkpoints.outside(since)

    @property
    def left_kernel(self) -> int | None:
        """The number of the session's kernel according to an earlier host, if it is known, before `go_on`."""
        return None

    def begin(self) -> None:
        """Start to preserve a new session."""

    async def go_on(self, on_input: OnInput | None) -> None:
        """Continue what an earlier host left of the session, if anything. `on_input` is for a cell that had a handler."""

    async def recover_left(self) -> Kernel | None:
        """Create the first kernel from the last state of an earlier host, or None."""
        return None

    def settled(self) -> None:
        """End the takeover, because the session has a kernel."""

    def relabel(self, label: str) -> None:
        """Change the session's label for a later host (`Host.session`). No later host continues a closed session."""

    def end(self) -> None:
        """Stop preserving a closed session. Idempotent."""


class Keeper(Places):
    """A null keeper of a host: it preserves nothing for the next host.

    Attributes:
        lasting: Whether there can be a next host.
        places: Path prefix of each session's own packages.
        first_number: The first number that no earlier host assigned to a session or a kernel.
    """

    lasting = False
    first_number = 1

    def __init__(self, places: str) -> None:
        self.places = places

    def session(self, parts: SessionParts, label: str, remains: SessionRemains | None) -> SessionKeeper:
        """Return the keeper of a session. `label` is for the program of a later host, `remains` are from an earlier one."""
        return SessionKeeper(parts)

    def fork_server(self, boot: Boot, numbers: Iterator[int]) -> ForkServer:
        """Create a fork server. `numbers` are unused ones."""
        return ForkServer(boot)

    def kernel_made(self, number: int, wanted: KernelSpec, family: Family, ends: Ends) -> Recording:
        """Preserve a new kernel, if its session is preserved, and return its recorder."""
        from cellblock.host.kernels.channel import NO_RECORDING  # loads what a kernel needs

        return NO_RECORDING

    def listener_taken(self, session: int | None, first: int, name: str, listener: socket.socket) -> Callable[[], None]:
        """Preserve a listener of a session, if the session is preserved. Return a function that stops it.

        The session is None if it ends with this process. `first` is the number of the first kernel of the init that opened it.
        """
        return lambda: None

    def kernel_gone(self, number: int) -> None:
        """Stop preserving a kernel."""

    def family_made(self, family: Family) -> None:
        """Preserve the connection over which an init handles copies of kernels."""

    def family_gone(self, family: Family) -> None:
        """Stop preserving the connection of a family."""

    def store_made(self, store: Store) -> None:
        """Preserve the directory of checkpoint files."""

    def store_gone(self) -> None:
        """Stop preserving the directory of checkpoint files."""

    def close(self) -> None:
        """Close what was not taken over from the previous host."""
