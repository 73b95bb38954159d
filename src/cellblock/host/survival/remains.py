"""What a killed host left: kernels, sessions, and connections for copies."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cellblock.host.checkpoints.branches import BranchDirectory
from cellblock.host.launch.launcher import Ends
from cellblock.host.survival.launchers import FormerZygote
from cellblock.host.survival.recalled import Recalled
from cellblock.host.survival.recording import TapeRecording
from cellblock.host.survival.state_log import StateLog
from cellblock.walls.sandbox.cgroups import Group


@dataclass
class KernelRemains:
    """A kernel of a killed host.

    Attributes:
        number: Its number, from the host.
        first: The number of the first kernel of its init (possibly itself), from the launcher.
        ends: Its connections.
        recording: Its recorder.
        launcher: The process that started it.
        listeners: The listeners of its init, by name.
    """

    number: int
    first: int
    ends: Ends
    recording: TapeRecording
    launcher: FormerZygote
    listeners: dict[str, socket.socket]

    def close(self) -> None:
        """Close all connections. Init ends when the other end of its socket is closed."""
        self.ends.close()
        self.recording.close()
        for listener in self.listeners.values():
            listener.close()


@dataclass
class FamilyRemains:
    """The connection to an init for copies of kernels.

    Attributes:
        first: As for `KernelRemains`.
        launcher: The process that started the first kernel.
        group: The control group of all its processes, if any.
        ports: Number of assigned ports (`Family.ports`).
        connection: The connection.
    """

    first: int
    launcher: FormerZygote
    group: Group | None
    ports: int
    connection: socket.socket


@dataclass
class SessionRemains:
    """A session of a killed host, for `Host.session` to continue or `Host.discard` to end.

    Attributes:
        label: Its label, from the host's program.
        number: Its number, from the host.
        place: The directory of its own packages.
        env: The environment of its kernels.
        branch: The directory of its files, if it is a branch with its own files.
        kernel: Its kernel, if it had one.
        replaced: Whether that kernel replaced another one, and the replacement was not completely recorded.
        log: The log of its states, if any.
        recalled: The states from the log; None if it is incomplete.
        keys: The descriptor of its secrets (`SessionKeys.hold`), if it has any.
        listeners: The names of its listeners.
    """

    label: str
    number: int
    place: str
    env: Mapping[str, str]
    branch: BranchDirectory | None = None
    kernel: KernelRemains | None = None
    replaced: bool = False
    log: StateLog | None = None
    recalled: Recalled | None = None
    keys: int | None = None
    listeners: tuple[str, ...] = ()

    @property
    def places(self) -> list[str]:
        """The paths of its directories."""
        return [f"{self.place}{suffix}" for suffix in ("", "-own", "-pip", "-keys", "-clone")]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to continue, because its host was killed before it had a kernel."""
        return self.kernel is None and (self.recalled is None or not self.recalled.states)

    def choose(self, kernels: list[KernelRemains]) -> list[KernelRemains]:
        """Choose the session's kernel, and return the others: one was about to replace another."""
        kernels = sorted(kernels, key=lambda kernel: kernel.number)
        known = None if self.recalled is None else self.recalled.kernel
        if [kernel.number for kernel in kernels] != [known] and (dead := _unreported(kernels)) is not None:
            self.kernel = dead
            return [kernel for kernel in kernels if kernel is not dead]
        self.kernel = next((kernel for kernel in kernels if kernel.number == known), None)
        if self.kernel is None and kernels and (self.recalled is None or self.recalled.going is not None):
            self.kernel, self.replaced = kernels[-1], self.recalled is not None
        return [kernel for kernel in kernels if kernel is not self.kernel]

    def take_listeners(self, listeners: Mapping[str, tuple[int, socket.socket]]) -> None:
        """Give the session's listeners to its kernel, if its init has opened them, or else close them.

        Args:
            listeners: The number of the first kernel of the init, and the listener, by name.
        """
        self.listeners = tuple(listeners)
        for name, (first, listener) in listeners.items():
            if self.kernel is not None and self.kernel.first == first:
                self.kernel.listeners[name] = listener
            else:
                listener.close()

    def close(self) -> None:
        """Close everything that was not taken over."""
        if self.kernel is not None:
            self.kernel.close()
        if self.log is not None:
            self.log.close()
        if self.keys is not None:
            os.close(self.keys)


def _unreported(kernels: Sequence[KernelRemains]) -> KernelRemains | None:
    """Return the last kernel that died during its replacement, unless a replacement has run a cell.

    The next host then replays its end: the result of its last cell may not have been delivered.
    """
    dead: KernelRemains | None = None
    for kernel in kernels:
        cells, replaced = kernel.recording.progress()
        if replaced:
            dead = kernel
        elif cells:
            dead = None
    return dead
