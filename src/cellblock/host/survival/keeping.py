"""Hands a host's kernels to its custodian, so that the next host can continue them."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import socket
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellblock.common.threads import run_aside
from cellblock.errors import CustodianError
from cellblock.host.checkpoints.branches import BranchDirectory, branch_recorded_at, remove_branches_of_the_dead
from cellblock.host.kernels.session_state import SessionState
from cellblock.host.launch.fork_server import ForkServer
from cellblock.host.launch.launcher import Boot, Ends, KeptLauncher, Launcher
from cellblock.host.place import SessionPlace
from cellblock.host.survival.keeper import Keeper, SessionKeeper, SessionParts
from cellblock.host.survival.launchers import ByCustodian, FormerZygote
from cellblock.host.survival.recording import TapeRecording
from cellblock.host.survival.remains import FamilyRemains, KernelRemains, SessionRemains
from cellblock.host.survival.state_log import StateLog
from cellblock.host.survival.tape import Aux, Tape
from cellblock.launch.custody.custodian_client import Custodian, Entry, Holding, Process
from cellblock.walls.sandbox.cgroups import Group

if TYPE_CHECKING:
    from cellblock.host.kernels.channel import Recording
    from cellblock.host.kernels.family import Family
    from cellblock.host.launch.kernel_spec import KernelSpec
    from cellblock.host.snapshots import Snapshot, Store

_log = logging.getLogger("cellblock.sessions")
FORMAT = 19
"""The version of the held data, which names classes by their modules. Only a host of this version can continue the kernels."""


def can_continue(custodian: Custodian) -> bool:
    """Return whether the custodian is empty, or a host of this version can continue its content."""
    host = custodian.entries.get("host")
    return host is None or json.loads(host.data)["format"] == FORMAT


class Keeping(Keeper):
    """The keeper of a host with a custodian: it hands over the host's resources, and takes the previous host's.

    Attributes:
        custodian: The custodian.
        prefix: The path prefix of all places, of all hosts of the custodian.
        sessions: The sessions of the previous host.
        surplus: Kernels that belong to no session, or not yet.
        families: Families of kernels with copies.
        zygotes: Zygotes of the previous host.
    """

    lasting = True

    def __init__(self, custodian: Custodian, prefix: str) -> None:
        """Read what the previous host left. The first host's places have this path prefix.

        Raises:
            CustodianError: The held data comes from another version of cellblock.
        """
        self.custodian = custodian
        entries, custodian.entries = custodian.entries, {}
        host = entries.pop("host", None)
        said: dict[str, Any] = {"format": FORMAT, "prefix": prefix, "generation": 0, "number": 1}
        if host is not None:
            said = json.loads(host.data)
            if said["format"] != FORMAT:
                raise CustodianError("the custodian owns kernels of another version of cellblock: end it and its kernels")
        self.prefix: str = said["prefix"]
        super().__init__(f"{self.prefix}{said['generation'] + 1}-")
        self._said = {**said, "generation": said["generation"] + 1}
        self._aux = Aux.make() if host is None else Aux(*host.fds)
        self.zygotes: dict[int, FormerZygote] = {}
        self.sessions: list[SessionRemains] = []
        self.surplus: list[KernelRemains] = []
        self.families: list[FamilyRemains] = []
        self._store: tuple[str, int] | None = None
        self._launchers: weakref.WeakKeyDictionary[Launcher, int] = weakref.WeakKeyDictionary()
        """The numbers of those that outlive this process."""
        self._held_places: dict[str, int] = {}
        self._branches: dict[str, BranchDirectory] = {}
        self._take(entries)
        numbers = [int(part) for key in entries for part in key.split("/")[1:2] if part.isdigit()]
        self.first_number = max(numbers, default=0) + 1

    @property
    def kernels(self) -> list[KernelRemains]:
        """The kernels of the previous host that were not taken over yet."""
        return [*self.surplus, *(session.kernel for session in self.sessions if session.kernel is not None)]

    def begin(self) -> None:
        """Start to hold what all kernels share."""
        Holding("host", self.custodian).hold(self._said, self._aux.fds)

    def _take(self, entries: Mapping[str, Entry]) -> None:
        kernels: dict[int, KernelRemains] = {}
        owners: dict[int, list[KernelRemains]] = {}
        listeners: dict[int, dict[tuple[int, str], socket.socket]] = {}
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
                        zygote = FormerZygote(socket.socket(fileno=control), stderr, process, holding.release)
                        self.zygotes[number] = zygote
                        self._launchers[zygote] = number  # for kernels created from its copies
                    case "place":
                        self._held_places[said["path"]] = entry.fds[0]
                    case "store":
                        self._store = said["path"], entry.fds[0]
                    case "session":
                        remains = SessionRemains(
                            said["label"], said["number"], said["place"], said["env"], self._branch(said["branch"])
                        )
                        if said.get("keys"):
                            remains.keys = entry.fds.pop()
                        if entry.fds:
                            remains.log = StateLog(entry.fds[0])
                            remains.state = SessionState.read(remains.log.read())
                        self.sessions.append(remains)
                    case "family":
                        connection = socket.socket(fileno=entry.fds[0])
                        launcher, group = self.zygotes[said["launcher"]], _group(said["group"])
                        self.families.append(FamilyRemains(said["first"], launcher, group, said["ports"], connection))
                    case "kernel":
                        kernels[said["number"]] = kernel = self._kernel(said, entry.fds)
                        owners.setdefault(said["session"], []).append(kernel)
                    case "listener":
                        opened = listeners.setdefault(said["session"], {})
                        opened[said["first"], said["name"]] = socket.socket(fileno=entry.fds[0])
        # Before anything else passes through the pipe.
        if (left := kernels.get(self._aux.left() or 0)) is not None:
            left.recording.tape.take_left()
        self._aux.drain()
        for session in self.sessions:
            self.surplus += session.choose(owners.pop(session.number, []))
            for first, name in session.take_listeners(listeners.pop(session.number, {})):
                self.custodian.remove(_listener(session.number, first, name))
        self.surplus += [kernel for some in owners.values() for kernel in some]

    def _kernel(self, said: Mapping[str, Any], fds: list[int]) -> KernelRemains:
        channel, control, stdout, stderr, log, *streams = fds
        ends = Ends(socket.socket(fileno=channel), socket.socket(fileno=control), stdout, stderr, _group(said["group"]))
        tape = Tape(said["number"], (log, streams[0], streams[1], streams[2]), self._aux)
        return KernelRemains(said["number"], said["first"], ends, TapeRecording(tape), self.zygotes[said["launcher"]], {})

    # -- this host's resources -----------------------------------------------------------------------------------------

    def session(self, parts: SessionParts, label: str, remains: SessionRemains | None) -> SessionKeeper:
        from cellblock.host.survival.session_handover import KeptSession  # loads what a session needs

        return KeptSession(Holding(f"session/{parts.number}", self.custodian), parts, label, remains)

    def fork_server(self, boot: Boot, numbers: Iterator[int]) -> ForkServer:
        number = next(numbers)
        keep = KeptLauncher(number, self.custodian.pidfd, Holding(f"launcher/{number}", self.custodian))
        launcher = ForkServer(replace(boot, starter=ByCustodian(self.custodian), places=self.prefix, keep=keep))
        self._launchers[launcher] = number
        return launcher

    def kernel_made(self, number: int, wanted: KernelSpec, family: Family, ends: Ends) -> Recording:
        launcher = self._launchers.get(family.launcher)
        if wanted.kept is None or launcher is None:
            return super().kernel_made(number, wanted, family, ends)
        tape = Tape.make(number, self._aux)
        recording = TapeRecording(tape)
        said = {
            "number": number,
            "session": wanted.kept,
            "launcher": launcher,
            "first": family.number,
            "group": _path(ends.group),
        }
        fds = [ends.channel.fileno(), ends.control.fileno(), ends.stdout, ends.stderr, *tape.fds]
        recording.holding = Holding(f"kernel/{number}", self.custodian).hold(said, fds)
        return recording

    def listener_taken(self, session: int | None, first: int, name: str, listener: socket.socket) -> Callable[[], None]:
        if session is None:
            return super().listener_taken(session, first, name, listener)
        # By the init, not by the kernel: kernels from copies continue with the first kernel's listeners.
        said = {"session": session, "first": first, "name": name}
        holding = Holding(_listener(session, first, name), self.custodian)
        holding.hold(said, [listener.fileno()])
        return holding.release

    def kernel_gone(self, number: int) -> None:
        self.custodian.remove(f"kernel/{number}")

    def _branch(self, said: Sequence[str] | None) -> BranchDirectory | None:
        """Return the directory of a branch: one object for all sessions that share it."""
        if said is None:
            return None
        root, number = said
        if number not in self._branches:
            self._branches[number] = BranchDirectory(root, number, self)
        return self._branches[number]

    def family_made(self, family: Family) -> None:
        launcher = self._launchers.get(family.launcher)
        if launcher is not None and family.connection is not None:
            said = {"first": family.number, "launcher": launcher, "group": _path(family.group), "ports": family.ports}
            Holding(f"family/{family.number}", self.custodian).hold(said, [family.connection.fileno()])

    def family_gone(self, family: Family) -> None:
        self.custodian.remove(f"family/{family.number}")

    def store_made(self, store: Store) -> None:
        Holding("store", self.custodian).hold({"path": str(store.directory)}, [store.held])

    async def take_store(self) -> Store | None:
        """Take over the previous host's checkpoint files, and attach them to the states of its sessions."""
        store: Store | None = None
        files: Iterator[Snapshot | None] = itertools.repeat(None)
        if self._store is not None:
            from cellblock.host.snapshots import Store

            (path, held), self._store = self._store, None
            described = [one for each in self.sessions for one in each.described]
            try:
                store, found = await asyncio.to_thread(Store.take_over, Path(path), held, described)
                files = iter(found)
            except OSError as error:
                _log.warning("the files of checkpoints in %s cannot be used: %s", path, error)
                os.close(held)
                self.store_gone()
        for each in self.sessions:
            each.take_files(files)
        return store

    def store_gone(self) -> None:
        self.custodian.remove("store")

    def session_gone(self, remains: SessionRemains) -> None:
        """Stop holding a session that is not continued."""
        self.custodian.remove(f"session/{remains.number}")
        for first, name in remains.listeners:
            self.custodian.remove(_listener(remains.number, first, name))

    # -- places --------------------------------------------------------------------------------------------------------

    def place_made(self, path: str, held: int) -> None:
        Holding(f"place/{Path(path).name}", self.custodian).hold({"path": path}, [held])

    def place_gone(self, path: str) -> None:
        self.custodian.remove(f"place/{Path(path).name}")

    def take_place(self, path: str) -> int | None:
        return self._held_places.pop(path, None)

    async def remove_left_places(self) -> None:
        """Remove directories that the previous host had not assigned to a session, or was removing, when it was killed."""
        known = {path for session in self.sessions for path in session.places}
        known |= {branch.path for branch in self._branches.values()}
        left = {*self._held_places} - known
        for path in left:
            await (branch_recorded_at(path, self) or SessionPlace(path, self)).remove(patience=0)
        run_aside(remove_branches_of_the_dead, "cellblock-removal")  # no process holds them now
        if any(path.endswith("-pin") for path in left):
            from cellblock.host.clones.pins import remove_pins_of_the_dead  # rarely used

            run_aside(remove_pins_of_the_dead, "cellblock-removal")

    def close(self) -> None:
        """Close what was not taken over. The custodian keeps holding the rest."""
        for session in self.sessions:
            session.close()
        for kernel in self.surplus:
            kernel.close()
        for family in self.families:
            family.connection.close()
        if self._store is not None:
            os.close(self._store[1])
        for held in self._held_places.values():
            os.close(held)
        self._aux.close()


def _group(path: str | None) -> Group | None:
    return None if path is None else Group(path)


def _listener(session: int, first: int, name: str) -> str:
    return f"listener/{session}/{first}/{name}"


def _path(group: Group | None) -> str | None:
    return None if group is None else group.path
