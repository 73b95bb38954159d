"""The kernels of a host: making them, and taking over those of a killed host. `Host` inherits it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from cellblock.errors import CustodianError, LaunchError, ProtocolError, StateError
from cellblock.host.checkpoints.branches import remove_branches_of_the_dead
from cellblock.host.launch.failures import cannot_start
from cellblock.host.launch.fork_server import ForkServer
from cellblock.host.launch.launcher import Boot, Ends, Launcher
from cellblock.host.launch.launchers import Launchers, LaunchKey, key_of
from cellblock.host.launch.spawner import Spawner
from cellblock.host.launch.srt import UnderSrt
from cellblock.host.launch.start import Direct, Starter
from cellblock.host.packages import remove_places_of_the_dead
from cellblock.walls.sandbox import cgroups

if TYPE_CHECKING:
    from cellblock.host.keeping import Keeping, KernelRemains
    from cellblock.host.kernels.cell import Cell, OnInput
    from cellblock.host.kernels.family import Anew, Copy, Family
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.launch.kernel_spec import KernelSpec, OnListener
    from cellblock.host.session import Session
    from cellblock.walls.sandbox.probe import Facts
    from cellblock.walls.sandbox.tiers import Tier
    from cellblock.wire.control import Setup

    Recovered: TypeAlias = tuple[Kernel, Cell | None]

_log = logging.getLogger("cellblock.sessions")
Launch = Literal["zygote", "spawn"]
_DESCRIPTORS_PER_KERNEL = 11 + 16  # its own, its tape's and its states', and the reserved connections of its tool port
_CONNECTIONS, _MAX_CONNECTIONS = 64, 1024  # connections to tool ports: reserved per session, and the maximum in total
_SPARE_DESCRIPTORS = 256


class WithKernels:
    """The methods of a host that make kernels, and take over those of a killed host.

    Attributes:
        facts: The facts of this machine.
        places: The prefix of the paths of each session's own packages.
        keeping: What outlives this process; None without a custodian.
    """

    facts: Facts
    places: str
    keeping: Keeping | None
    _launch: Launch
    _start_timeout: float
    _launchers: Launchers
    _kernels: set[Kernel]
    _families: set[Family]
    """Those with copies."""
    _connected: dict[int, Family]
    """Those with copies of a killed host, by number."""
    _sessions: set[Session]
    _numbers: Iterator[int]
    _keep_numbers: weakref.WeakKeyDictionary[Launcher, int]
    _groups: cgroups.Groups | None
    _owner: tuple[int, asyncio.AbstractEventLoop] | None
    _sweeping: asyncio.Future[None] | None
    _closed: bool

    def check_usable(self) -> None:
        """Check that the host can be used here and now.

        Raises:
            StateError: It is closed, or belongs to another process or event loop.
        """
        if self._closed:
            raise StateError("the host is closed; make a new one")
        # First the process: in a fork there is no running loop, although there seems to be one.
        if self._owner is not None and self._owner[0] != os.getpid():
            raise StateError("the host belongs to the process that made it; after a fork, make a new one in the child")
        here = (os.getpid(), asyncio.get_running_loop())
        if self._owner is None:
            self._owner = here
        elif self._owner[1] is not here[1]:
            raise StateError(
                "this host, or the executor that uses it, belongs to another event loop: make one for each asyncio.run(); "
                "from other threads, use asyncio.run_coroutine_threadsafe() with its own loop"
            )

    async def launch(self, wanted: KernelSpec, prepare: Callable[[], None] = lambda: None) -> Kernel:
        """Start a kernel and wait until it takes cells. If this is cancelled, nothing remains.

        Args:
            wanted: Its specification.
            prepare: Creates what the kernel needs outside. By then, a process exists that removes it if this one is killed.

        Raises:
            LaunchError: It could not be started.
        """
        self.check_usable()
        _make_room_for(len(self._sessions) + 1)
        key = key_of(wanted)
        launcher = await self._launchers.started(key)
        self._sweep(wanted.tier)
        prepare()
        try:
            return await self._launch_by(launcher, wanted)
        except LaunchError:
            if launcher.alive:
                raise
        # It died during the request. Retry only once: a second death has a reason, which the caller must see.
        self.check_usable()
        return await self._launch_by(await self._launchers.started(key), wanted)

    async def resume(self, copy: Copy, wanted: KernelSpec, how: Anew) -> Kernel:
        """Make a kernel from a copy, and wait until it takes cells. If this is cancelled, nothing remains.

        Args:
            copy: The copy, which stays.
            wanted: Its specification.
            how: How it differs from the kernel that was copied.

        Raises:
            CheckpointError: The copy has ended.
            LaunchError: There is no room for another kernel, or it did not become ready.
        """
        self.check_usable()
        _make_room_for(len(self._sessions) + 1)
        try:
            ends = copy.family.resume(copy, how)
        except OSError as error:
            raise cannot_start(error) from error
        return await self._ready(self._take(copy.family, next(self._numbers), ends, wanted))

    async def recover(self, remains: KernelRemains, wanted: KernelSpec, on_input: OnInput | None) -> Recovered | None:
        """Continue a kernel of a killed host. Returns it with its last cell; None if that fails: then the kernel is ended."""
        from cellblock.host.kernels.kernel import Kernel
        from cellblock.host.kernels.recovery import recover

        assert self.keeping is not None
        takers = wanted.takers
        wanted = replace(wanted, takers=self._kept_takers(remains.number, takers))
        kernel = Kernel(
            self._family_of(remains),
            remains.number,
            remains.ends,
            wanted,
            self._on_closed(remains.launcher, remains.number),
            remains.recording,
            listen=False,
        )
        self._kernels.add(kernel)
        try:
            for name, listener in remains.listeners.items():
                del kernel.control.takers[name]
                takers[name](listener)
            kernel.memory.set_limits(kernel.wanted.policy.resources)
            cell = await recover(kernel, on_input)
            if kernel.ready.done() and not kernel.ready.exception():
                return kernel, cell
            _log.info("%s: its kernel was not ready when its host was killed", wanted.session)
        except (ValueError, KeyError, ProtocolError, LaunchError) as error:
            _log.warning("%s: its kernel cannot be continued: %r", wanted.session, error)
        except BaseException:
            await kernel.close()
            raise
        await kernel.close()
        return None

    def forget_kernel(self, remains: KernelRemains) -> None:
        """End a kernel that is not adopted."""
        assert self.keeping is not None
        remains.close()  # closing its connection ends the kernel, even if its init serves others
        left = [*self.keeping.surplus, *(session.kernel for session in self.keeping.sessions if session.kernel is not None)]
        shared = {kernel.first for kernel in left} | {kernel.family.number for kernel in self._kernels}
        family = self._connected.get(remains.first)
        if family is not None:
            family.awaited -= 1
        elif remains.first not in shared:
            remains.launcher.kill(remains.first)
        self.keeping.kernel_gone(remains.number, [*remains.listeners])
        if remains.ends.group is not None:
            remains.ends.group.remove()
        self._launchers.kernel_closed(remains.launcher)

    async def _adopt_kernels(self) -> None:
        """Take over the launchers and copies of a killed host; end kernels that belong to no session."""
        keeping = self.keeping
        assert keeping is not None
        kernels = [*keeping.surplus, *(session.kernel for session in keeping.sessions if session.kernel is not None)]
        for number, zygote in keeping.zygotes.items():
            self._keep_numbers[zygote] = number  # for kernels that are made from copies
            self._launchers.adopt(
                zygote,
                sum(kernel.launcher is zygote for kernel in kernels) + sum(one.launcher is zygote for one in keeping.families),
            )
        states = [
            state for session in keeping.sessions if session.recalled is not None for state in session.recalled.states.values()
        ]
        families, keeping.families = keeping.families, []
        for left in families:
            family = self._connected[left.first] = self._family(left.launcher, left.first, left.group)
            self._families.add(family)
            family.ports = left.ports
            family.awaited = sum(kernel.first == left.first for kernel in kernels)
            wanted = [state for state in states if state.kept.family == left.first]
            copies = family.go_on(left.connection, {state.kept.copy for state in wanted})
            for state in wanted:
                state.copy = copies[state.kept.copy]
        while keeping.surplus:
            self.forget_kernel(keeping.surplus.pop())
        for family in [*self._connected.values()]:
            await family.settle()

    async def _launch_by(self, launcher: Launcher, wanted: KernelSpec) -> Kernel:
        await launcher.room(self._start_timeout)
        number = next(self._numbers)
        ends = launcher.launch(number, self._setup(launcher, wanted))
        return await self._ready(self._take(self._family(launcher, number, ends.group), number, ends, wanted))

    async def _ready(self, kernel: Kernel) -> Kernel:
        try:
            kernel.memory.set_limits(kernel.wanted.policy.resources)
            await kernel.started(self._start_timeout)
            if kernel.held is not None:
                await self._wait_until_held(kernel.held)
        except BaseException as error:  # also a cancellation: we own the kernel until it is returned
            if isinstance(error, LaunchError) and not kernel.ready.done() and not kernel.family.shared:
                # It may be stopped; start the next kernel elsewhere.
                self._launchers.retire(key_of(kernel.wanted), kernel.family.launcher)
            await kernel.close()
            raise
        return kernel

    async def _wait_until_held(self, held: asyncio.Future[None]) -> None:
        await asyncio.wait([held], timeout=self._start_timeout)
        if not held.done():
            raise CustodianError(f"the custodian has not answered within {self._start_timeout:g} s")
        held.result()

    def _take(self, family: Family, number: int, ends: Ends, wanted: KernelSpec) -> Kernel:
        """Take ownership of a kernel at once: no await may come between."""
        from cellblock.host.kernels.kernel import Kernel

        recording = None
        try:
            if wanted.kept is not None and self.keeping is not None and self._keeps(wanted.tier):
                recording = self.keeping.record(number)
                launcher = self._keep_numbers[family.launcher]
                held = self.keeping.kernel_made(number, wanted.kept, launcher, family.number, ends, recording.tape)
                wanted = replace(wanted, takers=self._kept_takers(number, wanted.takers))
            kernel = Kernel(family, number, ends, wanted, self._on_closed(family.launcher, number), recording)
        except BaseException:  # of any kind: nothing else closes these
            ends.close()  # init ends when the other end of its control socket is closed
            raise
        if recording is not None:
            kernel.held = held
        self._kernels.add(kernel)
        self._launchers.kernel_made(family.launcher)
        return kernel

    def _on_closed(self, launcher: Launcher, number: int) -> Callable[[Kernel], None]:
        def on_closed(kernel: Kernel) -> None:
            if kernel in self._kernels:
                self._kernels.remove(kernel)
                self._launchers.kernel_closed(launcher)
                if self.keeping is not None:
                    self.keeping.kernel_gone(number, [*kernel.wanted.takers])

        return on_closed

    def _family(self, launcher: Launcher, number: int, group: cgroups.Group | None) -> Family:
        """Return the family of a kernel and of all that are made from its copies."""
        from cellblock.host.kernels.family import Family

        family = Family(launcher, number, group)
        family.on_connected, family.on_closed = self._family_connected, self._family_closed
        family.on_ports = self._hold_family
        return family

    def _family_of(self, remains: KernelRemains) -> Family:
        """Return the family of an adopted kernel, shared with branches that were adopted before."""
        for kernel in self._kernels:
            if (kernel.family.launcher, kernel.family.number) == (remains.launcher, remains.first):
                return kernel.family
        if (family := self._connected.get(remains.first)) is not None:
            return family
        return self._family(remains.launcher, remains.first, remains.ends.group)

    def _family_connected(self, family: Family) -> None:
        self._families.add(family)
        self._launchers.kernel_made(family.launcher)  # which stays for its copies as for a kernel
        self._hold_family(family)

    def _hold_family(self, family: Family) -> None:
        """Have the custodian hold the connection for copies, if it holds the kernels."""
        launcher = self._keep_numbers.get(family.launcher)
        if self.keeping is not None and launcher is not None and family.connection is not None:
            self.keeping.family_made(family.number, launcher, family.group, family.ports, family.connection)

    def _family_closed(self, family: Family) -> None:
        self._families.discard(family)
        self._connected.pop(family.number, None)
        if self.keeping is not None:
            self.keeping.family_gone(family.number)
        self._launchers.kernel_closed(family.launcher)

    def _keeps(self, tier: Tier) -> bool:
        return self.keeping is not None and not tier.wrapped and self._launch == "zygote"

    def _kept_takers(self, number: int, takers: Mapping[str, OnListener]) -> dict[str, OnListener]:
        """Return callbacks that have a kernel's listeners held, then pass them on."""

        def kept(name: str, taker: OnListener) -> OnListener:
            def take(listener: socket.socket) -> None:
                assert self.keeping is not None
                self.keeping.listener_made(number, name, listener)
                taker(listener)

            return take

        return {name: kept(name, taker) for name, taker in takers.items()}

    def _sweep(self, tier: Tier) -> None:
        """Remove what killed hosts have left, in the background: it may be much, or in a large directory."""
        if self._sweeping is None:
            with contextlib.suppress(RuntimeError):  # no thread can be started now; a later kernel tries again
                self._sweeping = asyncio.get_running_loop().run_in_executor(None, _remove_what_the_dead_left, tier.ours)

    def _setup(self, launcher: Launcher, wanted: KernelSpec) -> Setup:
        """Return the setup for a kernel's init, including the sandbox."""
        return wanted.tier.complete(wanted.setup, wanted.policy, self.facts, launcher.interpreter)

    def _make_launcher(self, key: LaunchKey) -> Launcher:
        interpreter, preload, tier, policy, workspace = key
        starter: Starter = Direct() if policy is None or workspace is None else UnderSrt(policy, self.facts, workspace)
        kind = ForkServer if self._launch == "zygote" else Spawner
        groups = self._groups_for(tier)
        if self.keeping is None or not self._keeps(tier):
            return kind(Boot(interpreter, preload, tier.basis, starter, self.places, groups))
        from cellblock.host.launch.kept import ByCustodian

        number = next(self._numbers)
        starter = ByCustodian(self.keeping.custodian)
        boot = Boot(interpreter, preload, tier.basis, starter, self.keeping.prefix, groups, self.keeping.launcher(number))
        launcher = ForkServer(boot)
        self._keep_numbers[launcher] = number
        return launcher

    def _groups_for(self, tier: Tier) -> cgroups.Groups | None:
        if self._groups is None and tier.own_group and (place := cgroups.find().directory) is not None:
            self._groups = cgroups.Groups(place)
        return self._groups if tier.own_group else None


def _remove_what_the_dead_left(places: bool) -> None:
    remove_branches_of_the_dead()
    if places:
        remove_places_of_the_dead()


def _make_room_for(kernels: int) -> None:
    """Raise this process's soft limit on descriptors if it is too low for this many kernels."""
    # Up to a quarter of all descriptors is for connections to tool ports (`tools.listen`), so that each session has its share.
    needed = kernels * _DESCRIPTORS_PER_KERNEL + _SPARE_DESCRIPTORS + 4 * min(kernels * _CONNECTIONS, _MAX_CONNECTIONS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    wanted = 2 * needed if hard == resource.RLIM_INFINITY else min(2 * needed, hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
