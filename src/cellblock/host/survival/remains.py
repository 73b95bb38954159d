"""What a killed host left: kernels, sessions, and connections for copies."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cellblock.host.checkpoints.branches import BranchDirectory
from cellblock.host.launch.launcher import Ends
from cellblock.host.survival.launchers import FormerZygote
from cellblock.host.survival.reconciling import LeftKernel, kernel_to_continue
from cellblock.host.survival.recording import TapeRecording
from cellblock.host.survival.state_log import StateLog
from cellblock.walls.sandbox.cgroups import Group

if TYPE_CHECKING:
    from cellblock.host.kernels.family import Copy
    from cellblock.host.kernels.session_state import SessionState
    from cellblock.host.kernels.state_events import Saved
    from cellblock.host.snapshots import Snapshot, Store
    from cellblock.host.snapshots.written import Description

_FILES_LOST = "they could not be read when their host was replaced"


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
        unrecorded: Whether that kernel replaced another one, and the log does not say so.
        log: The log of its state, if any.
        state: The state from the log; None if it is incomplete.
        copies: The copies of its kernels by the ids of the checkpoints, once found.
        keys: The descriptor of its secrets (`SessionKeys.hold`), if it has any.
        listeners: The number of the first kernel of its kernel's init, and the name, for each listener of that init.
    """

    label: str
    number: int
    place: str
    env: Mapping[str, str]
    branch: BranchDirectory | None = None
    kernel: KernelRemains | None = None
    unrecorded: bool = False
    log: StateLog | None = None
    state: SessionState | None = None
    copies: dict[str, Copy] = field(default_factory=dict)
    keys: int | None = None
    listeners: tuple[tuple[int, str], ...] = ()

    @property
    def places(self) -> list[str]:
        """The paths of its directories."""
        return [f"{self.place}{suffix}" for suffix in ("", "-own", "-pip", "-keys", "-clone", "-pin", "-devices")]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to continue, because its host was killed before it had a kernel."""
        return self.kernel is None and (self.state is None or not self.state.checkpoints)

    def choose(self, kernels: list[KernelRemains]) -> list[KernelRemains]:
        """Choose the session's kernel, and return the others."""
        kernels = sorted(kernels, key=lambda kernel: kernel.number)
        if self.state is not None and [kernel.number for kernel in kernels] == [self.state.kernel]:
            left = [LeftKernel(self.state.kernel)]  # usual: its journal, which may be long, is read later
        else:
            left = [LeftKernel(kernel.number, *kernel.recording.progress()) for kernel in kernels]
        number, self.unrecorded = kernel_to_continue(self.state, left)
        self.kernel = next((kernel for kernel in kernels if kernel.number == number), None)
        return [kernel for kernel in kernels if kernel is not self.kernel]

    @property
    def described(self) -> list[Description]:
        """The descriptions of all files in its state."""
        if self.state is None:
            return []
        files = [saved.files for saved in self.state.saved if saved.files is not None]
        held = [self.state.pairs.held, *(undid.held for undid in self.state.redos)]
        return [*files, *(one for each in held for one in dict.fromkeys(each))]

    def take_files(self, found: Iterator[Snapshot | None]) -> None:
        """Put the snapshots found for `described`, in the same order, into the state."""
        if self.state is None:
            return
        state = self.state
        saved = {one.id: _with_files(one, found) for one in state.saved}
        state.checkpoints = {name: saved[name] for name in state.checkpoints}
        known = {described: next(found) for described in dict.fromkeys(state.pairs.held)}
        state.pairs = state.pairs.copied(known.get)
        for number, undid in enumerate(state.redos):
            known = {described: next(found) for described in dict.fromkeys(undid.held)}
            before, after = (None if one is None else known[one] for one in (undid.before, undid.after))
            its = tuple(saved[name] for name in undid.checkpoints)
            state.redos[number] = undid._replace(pairs=undid.pairs.copied(known.get), before=before, after=after, saved=its)

    def drop(self, store: Store | None) -> None:
        """End all copies and drop all files, because the session is not continued."""
        for copy in self.copies.values():
            copy.family.drop(copy)
        if store is not None and self.state is not None:
            files = [saved.files for saved in self.state.saved]
            for one in (*files, *self.state.pairs.held, *(one for undid in self.state.redos for one in undid.held)):
                if one is not None:
                    store.drop(one)

    def take_listeners(self, listeners: Mapping[tuple[int, str], socket.socket]) -> list[tuple[int, str]]:
        """Give its kernel the listeners that its init has opened. Close and return the others.

        Listeners are named by the number of the first kernel of the init, and by their name.
        """
        others = []
        for (first, name), listener in listeners.items():
            if self.kernel is not None and self.kernel.first == first:
                self.kernel.listeners[name] = listener
                self.listeners += ((first, name),)
            else:
                listener.close()
                others.append((first, name))
        return others

    def close(self) -> None:
        """Close everything that was not taken over."""
        if self.kernel is not None:
            self.kernel.close()
        if self.log is not None:
            self.log.close()
        if self.keys is not None:
            os.close(self.keys)


def _with_files(saved: Saved, found: Iterator[Snapshot | None]) -> Saved:
    if saved.files is None:
        return saved
    files = next(found)
    return saved._replace(files=files, without_files=_FILES_LOST if files is None else "")
