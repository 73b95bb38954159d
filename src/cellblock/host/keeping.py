"""Entrusts a host's kernels to its custodian, so that the next host can continue them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cellblock.errors import CustodianError
from cellblock.host.checkpoints.branches import BranchDirectory
from cellblock.host.checkpoints.recalled import Recalled
from cellblock.host.checkpoints.state_log import StateLog
from cellblock.host.kernels.recording import Recording
from cellblock.host.kernels.tape import Aux, Tape
from cellblock.host.launch.former import FormerZygote
from cellblock.host.launch.launcher import Ends
from cellblock.host.launch.start import Started
from cellblock.launch.custody.client import Custodian, Entry, Process
from cellblock.walls.sandbox.cgroups import Group

_FORMAT = 5
"""The version of the held data. A host of another version ends the kernels instead of continuing them."""


@dataclass
class KernelRemains:
    """A kernel of a killed host.

    Attributes:
        number: Its number, given by the host.
        first: The number that the launcher gave the first kernel of its init, possibly itself.
        ends: Its connections.
        recording: Its tape.
        launcher: The process that started it.
        listeners: The listeners of its init, by name.
    """

    number: int
    first: int
    ends: Ends
    recording: Recording
    launcher: FormerZygote
    listeners: dict[str, socket.socket]

    def close(self) -> None:
        """Close everything. Init ends when the other end of its socket is closed."""
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
        group: The control group of all its processes, if they have one.
        ports: How many ports were assigned (`Family.ports`).
        connection: The connection.
    """

    first: int
    launcher: FormerZygote
    group: Group | None
    ports: int
    connection: socket.socket


@dataclass
class SessionRemains:
    """A session of a killed host, for `Host.session` to continue, or `Host.discard` to end.

    Attributes:
        label: Its label, set by the host's program.
        number: Its number, given by the host.
        place: The directory of its own packages.
        env: The environment of its kernels.
        branch: The directory of its files, if it is a branch with its own files.
        kernel: Its kernel, if it had one.
        replaced: Whether that kernel had replaced another one, and the replacement was not completely recorded.
        log: The log of its states, if there is one.
        recalled: The states from the log; None if it is incomplete.
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

    def close(self) -> None:
        """Close whatever was not taken over."""
        if self.kernel is not None:
            self.kernel.close()
        if self.log is not None:
            self.log.close()


@dataclass
class Holding:
    """One entry held by the custodian.

    Attributes:
        key: Its key.
    """

    key: str
    _custodian: Custodian = field(repr=False)

    def hold(self, data: Mapping[str, Any], fds: Sequence[int]) -> asyncio.Future[None]:
        """Have data and descriptors held. Done when they are."""
        return self._custodian.put(self.key, json.dumps(data).encode(), fds)

    def release(self) -> None:
        """Stop holding it."""
        self._custodian.remove(self.key)


class KeptLauncher:
    """Has a launcher's process held by the custodian. See `cellblock.host.launch.launcher.Keep`."""

    def __init__(self, number: int, custodian: Custodian) -> None:
        self.number = number
        self.pidfd = custodian.pidfd
        self._holding = Holding(f"launcher/{number}", custodian)

    def hold(self, process: Started, control: int, stderr: int) -> None:
        """See `Keep`."""
        assert isinstance(process, Process)
        self._holding.hold({"number": self.number, "pid": process.pid}, [control, stderr, *process.descriptors])

    def release(self) -> None:
        """See `Keep`."""
        self._holding.release()


class Keeping:
    """The resources that one host entrusts to its custodian, and those that the previous host has left there.

    Attributes:
        custodian: The custodian.
        prefix: The prefix of the paths of all places, of all hosts that the custodian has had.
        places: The prefix for the places of this host.
        first_number: The first number that no earlier host has assigned to a session or a kernel.
        sessions: The sessions of the previous host.
        surplus: Kernels that no longer belong to a session, or not yet.
        families: The families of kernels that have copies.
        store: The store of checkpoint files: the path of its directory, and a descriptor; None without one.
        zygotes: Its zygotes.
    """

    def __init__(self, custodian: Custodian, prefix: str) -> None:
        """Read what the previous host has left.

        Args:
            custodian: The custodian.
            prefix: The prefix of the paths of places, if this is the first host.

        Raises:
            CustodianError: The held data comes from another version of cellblock.
        """
        self.custodian = custodian
        entries, custodian.entries = custodian.entries, {}
        host = entries.pop("host", None)
        said: dict[str, Any] = {"format": _FORMAT, "prefix": prefix, "generation": 0, "number": 1}
        if host is not None:
            said = json.loads(host.data)
            if said["format"] != _FORMAT:
                raise CustodianError("the running sessions belong to another version of cellblock: end them with that version")
        self.prefix: str = said["prefix"]
        self.places = f"{self.prefix}{said['generation'] + 1}-"
        self._said = {**said, "generation": said["generation"] + 1}
        self._aux = Aux.make() if host is None else Aux(*host.fds)
        self.zygotes: dict[int, FormerZygote] = {}
        self.sessions: list[SessionRemains] = []
        self.surplus: list[KernelRemains] = []
        self.families: list[FamilyRemains] = []
        self.store: tuple[str, int] | None = None
        self._held_places: dict[str, int] = {}
        self._branches: dict[str, BranchDirectory] = {}
        self._take(entries)
        numbers = [int(part) for key in entries for part in key.split("/")[1:2] if part.isdigit()]
        self.first_number = max(numbers, default=0) + 1

    def begin(self) -> None:
        """Have held what all kernels share."""
        Holding("host", self.custodian).hold(self._said, self._aux.fds)

    def _take(self, entries: Mapping[str, Entry]) -> None:
        kernels: dict[int, KernelRemains] = {}
        owners: dict[int, list[KernelRemains]] = {}
        for kind in ("launcher", "place", "store", "session", "family", "kernel", "listener"):
            for key, entry in entries.items():
                if key.partition("/")[0] != kind:
                    continue
                said = json.loads(entry.data)
                match kind:
                    case "launcher":
                        number = said["number"]
                        control, stderr, pidfd, status = entry.fds
                        process = Process(said["pid"], pidfd, status)
                        holding = Holding(key, self.custodian)
                        self.zygotes[number] = FormerZygote(socket.socket(fileno=control), stderr, process, holding.release)
                    case "place":
                        self._held_places[said["path"]] = entry.fds[0]
                    case "store":
                        self.store = said["path"], entry.fds[0]
                    case "session":
                        remains = SessionRemains(
                            said["label"], said["number"], said["place"], said["env"], self._branch(said["branch"])
                        )
                        if entry.fds:
                            remains.log = StateLog(entry.fds[0])
                            remains.recalled = Recalled.read(remains.log.read())
                        self.sessions.append(remains)
                    case "family":
                        connection = socket.socket(fileno=entry.fds[0])
                        launcher, group = self.zygotes[said["launcher"]], _group(said["group"])
                        self.families.append(FamilyRemains(said["first"], launcher, group, said["ports"], connection))
                    case "kernel":
                        kernels[said["number"]] = kernel = self._kernel(said, entry.fds)
                        owners.setdefault(said["session"], []).append(kernel)
                    case "listener" if said["kernel"] in kernels:
                        kernels[said["kernel"]].listeners[said["name"]] = socket.socket(fileno=entry.fds[0])
        # Before anything else goes through the pipe.
        if (left := kernels.get(self._aux.left() or 0)) is not None:
            left.recording.tape.take_left()
        self._aux.drain()
        for session in self.sessions:
            self.surplus += session.choose(owners.pop(session.number, []))
        self.surplus += [kernel for some in owners.values() for kernel in some]

    def _kernel(self, said: Mapping[str, Any], fds: list[int]) -> KernelRemains:
        channel, control, stdout, stderr, log, *streams = fds
        ends = Ends(socket.socket(fileno=channel), socket.socket(fileno=control), stdout, stderr, _group(said["group"]))
        tape = Tape(said["number"], (log, streams[0], streams[1], streams[2]), self._aux)
        return KernelRemains(said["number"], said["first"], ends, Recording(tape), self.zygotes[said["launcher"]], {})

    # -- of this host --------------------------------------------------------------------------------------------------

    def launcher(self, number: int) -> KeptLauncher:
        """Return the object that has a launcher held."""
        return KeptLauncher(number, self.custodian)

    def record(self, number: int) -> Recording:
        """Create the tape of a kernel."""
        return Recording(Tape.make(number, self._aux))

    def kernel_made(
        self, number: int, session: int, launcher: int, first: int, ends: Ends, tape: Tape
    ) -> asyncio.Future[None]:
        """Have a kernel held. Done when it is."""
        group = None if ends.group is None else ends.group.path
        said = {"number": number, "session": session, "launcher": launcher, "first": first, "group": group}
        fds = [ends.channel.fileno(), ends.control.fileno(), ends.stdout, ends.stderr, *tape.fds]
        return Holding(f"kernel/{number}", self.custodian).hold(said, fds)

    def kernel_gone(self, number: int, listeners: Sequence[str]) -> None:
        """Stop holding a kernel."""
        for name in listeners:
            self.custodian.remove(f"listener/{number}/{name}")
        self.custodian.remove(f"kernel/{number}")

    def listener_made(self, number: int, name: str, listener: socket.socket) -> None:
        """Have a listener of a kernel's init held."""
        holding = Holding(f"listener/{number}/{name}", self.custodian)
        holding.hold({"kernel": number, "name": name}, [listener.fileno()])

    def _branch(self, said: Sequence[str] | None) -> BranchDirectory | None:
        """Return the directory of a branch: one object for all sessions that share it."""
        if said is None:
            return None
        root, number = said
        if number not in self._branches:
            self._branches[number] = BranchDirectory(root, number, self)
        return self._branches[number]

    def family_made(self, first: int, launcher: int, group: Group | None, ports: int, connection: socket.socket) -> None:
        """Have the connection held over which an init handles copies of kernels."""
        said = {"first": first, "launcher": launcher, "group": None if group is None else group.path, "ports": ports}
        Holding(f"family/{first}", self.custodian).hold(said, [connection.fileno()])

    def family_gone(self, first: int) -> None:
        """Stop holding the connection of a family."""
        self.custodian.remove(f"family/{first}")

    def store_made(self, path: str, held: int) -> None:
        """Have the directory of checkpoint files held."""
        Holding("store", self.custodian).hold({"path": path}, [held])

    def store_gone(self) -> None:
        """Stop holding the directory of checkpoint files."""
        self.custodian.remove("store")

    def session_made(
        self,
        number: int,
        label: str,
        place: str,
        env: Mapping[str, str],
        branch: BranchDirectory | None,
        log: StateLog | None,
    ) -> None:
        """Have a session held."""
        said = {"label": label, "number": number, "place": place, "env": dict(env), "branch": None}
        if branch is not None:
            said["branch"] = [branch.root, branch.number]
        Holding(f"session/{number}", self.custodian).hold(said, [] if log is None else [log.fd])

    def session_gone(self, number: int) -> None:
        """Stop holding a session."""
        self.custodian.remove(f"session/{number}")

    # -- places --------------------------------------------------------------------------------------------------------

    def place_made(self, path: str, held: int) -> None:
        """Have a directory held, so that it is not taken for abandoned."""
        Holding(f"place/{Path(path).name}", self.custodian).hold({"path": path}, [held])

    def place_gone(self, path: str) -> None:
        """Stop holding a directory."""
        self.custodian.remove(f"place/{Path(path).name}")

    def take_place(self, path: str) -> int | None:
        """Return the descriptor of a directory that an earlier host has made, if there is one; the caller closes it."""
        return self._held_places.pop(path, None)

    def close(self) -> None:
        """Close what was not taken over. The custodian keeps holding it."""
        for session in self.sessions:
            session.close()
        for kernel in self.surplus:
            kernel.close()
        for family in self.families:
            family.connection.close()
        if self.store is not None:
            os.close(self.store[1])
        for held in self._held_places.values():
            os.close(held)
        self._aux.close()


def _unreported(kernels: Sequence[KernelRemains]) -> KernelRemains | None:
    """Return the last kernel that died with its replacement on the way, if no replacement has run a cell yet.

    The next host then replays its end: its host may have been killed before the result of its last cell was delivered.
    """
    dead: KernelRemains | None = None
    for kernel in kernels:
        cells, replaced = kernel.recording.progress()
        if replaced:
            dead = kernel
        elif cells:
            dead = None
    return dead


def _group(path: str | None) -> Group | None:
    return None if path is None else Group(path)
