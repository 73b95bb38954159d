"""The kernels of a host: start them, and take over a killed host's."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import resource
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Literal, TypeAlias

from cellblock.errors import LaunchError, ProtocolError
from cellblock.host.checkpoints.branches import remove_branches_of_the_dead
from cellblock.host.files.steps import in_thread
from cellblock.host.launch.fork_server import ForkServer
from cellblock.host.launch.launcher import Boot, Ends, Launcher
from cellblock.host.launch.launchers import Launchers, LaunchKey, key_of
from cellblock.host.launch.spawner import Spawner
from cellblock.host.launch.srt import UnderSrt
from cellblock.host.launch.start import Starter
from cellblock.host.launch_failures import cannot_start
from cellblock.host.packages import remove_places_of_the_dead
from cellblock.walls.sandbox import cgroups

if TYPE_CHECKING:
    from cellblock.host.kernels.cell import Cell, OnInput
    from cellblock.host.kernels.family import Anew, Copy, Family
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.launch.kernel_spec import KernelSpec
    from cellblock.host.snapshots import Store
    from cellblock.host.survival.keeper import Keeper
    from cellblock.host.survival.keeping import Keeping
    from cellblock.host.survival.remains import KernelRemains, SessionRemains
    from cellblock.walls.sandbox.probe import Facts
    from cellblock.walls.sandbox.tiers import Tier
    from cellblock.wire.control import Setup

    Recovered: TypeAlias = tuple[Kernel, Cell | None]

_log = logging.getLogger("cellblock.sessions")
Launch = Literal["zygote", "spawn"]
_DESCRIPTORS_PER_KERNEL = 11 + 16  # its own, its journal's and its states', and the reserved connections of its tool port
_CONNECTIONS, _MAX_CONNECTIONS = 64, 1024  # connections to tool ports: reserved per session, and the maximum in total
_SPARE_DESCRIPTORS = 256
_IN_MESSAGE = 253  # the maximum number of descriptors in one message (SCM_MAX_FD), by which the counter may exceed a limit


class Kernels:
    """The kernels of a host.

    Attributes:
        alive: The kernels that have not ended.
        launchers: Their launchers.
        families: Families of kernels with copies.
    """

    def __init__(
        self,
        launch: Launch,
        start_timeout: float,
        facts: Facts,
        keeper: Keeper,
        check_usable: Callable[[], None],
        sessions: Sized,
    ) -> None:
        """Start without kernels.

        Args:
            launch: How to start kernels.
            start_timeout: Time limit for a kernel to become ready, in seconds.
            facts: Facts about this machine.
            keeper: Preserves kernels for the next host.
            check_usable: Checks that the host is open and belongs to this process and event loop.
            sessions: The sessions of the host.
        """
        self.alive: set[Kernel] = set()
        self.families: set[Family] = set()
        self.launchers = Launchers(self._make_launcher, start_timeout, _verify)
        self._launch = launch
        self._start_timeout = start_timeout
        self._facts = facts
        self._keeper = keeper
        self._check_usable = check_usable
        self._sessions = sessions
        self._numbers = itertools.count(keeper.first_number)
        self._connected: dict[int, Family] = {}
        """Families with copies of a killed host, by number."""
        self._groups: cgroups.Groups | None = None
        self._sweeping: asyncio.Future[None] | None = None

    def next_number(self) -> int:
        """Return a new number for a kernel, session or launcher."""
        return next(self._numbers)

    async def end_all(self) -> None:
        await asyncio.gather(*(kernel.close() for kernel in [*self.alive]))  # of sessions whose close was interrupted
        await asyncio.gather(*(family.close() for family in [*self.families]))
        if self._sweeping is not None and not self._sweeping.done():
            await asyncio.wait([self._sweeping])

    async def close(self) -> None:
        """End all launchers, and all kernels with them."""
        await self.launchers.close()
        if self._groups is not None:
            self._groups.close()

    async def launch(self, wanted: KernelSpec, prepare: Callable[[], None] = lambda: None) -> Kernel:
        """Start a kernel and wait until it accepts cells. A cancellation leaves nothing behind.

        Args:
            wanted: Its specification.
            prepare: Creates what the kernel needs outside. By then, a process exists that removes it if this one is killed.

        Raises:
            LaunchError: The kernel could not be started.
        """
        self._check_usable()
        _make_room_for(len(self._sessions) + 1, wanted.policy.resources.open_files)
        key = key_of(wanted)
        launcher = await self.launchers.started(key)
        if not launcher.sees(wanted.setup.cwd):  # something was mounted since it was started
            self.launchers.retire(key, launcher)
            launcher = await self.launchers.started(key)
        self._sweep(wanted.tier)
        prepare()
        try:
            return await self._launch_by(launcher, wanted)
        except LaunchError:
            if launcher.alive:
                raise
        # It died during the request. Retry only once: a second death has a reason, which the caller must see.
        self._check_usable()
        return await self._launch_by(await self.launchers.started(key), wanted)

    async def resume(self, copy: Copy, wanted: KernelSpec, how: Anew) -> Kernel:
        """Create a kernel from a copy, and wait until it accepts cells. A cancellation leaves nothing behind.

        Args:
            copy: The copy, which is unchanged.
            wanted: The kernel's specification.
            how: The differences from the copied kernel.

        Raises:
            CheckpointError: The copy has ended.
            LaunchError: There is no room for another kernel, or it did not become ready.
        """
        self._check_usable()
        _make_room_for(len(self._sessions) + 1, wanted.policy.resources.open_files)
        try:
            ends = copy.family.resume(copy, how)
        except OSError as error:
            raise cannot_start(error) from error
        kernel = self._take(copy.family, self.next_number(), ends, wanted)
        kernel.origin = copy
        await self._ready(kernel)
        kernel.origin = None
        return kernel

    def can_double(self, kernel: Kernel) -> bool:
        """Return whether a session can have a second kernel.

        srt would mistake the mount points of another srt in the same workspace for files, and leave them there.
        """
        wanted = kernel.wanted
        launcher = self.launchers.in_use.get(key_of(wanted))
        return not wanted.tier.wrapped or (self._launch == "zygote" and launcher is kernel.family.launcher and launcher.alive)

    # -- takeover ------------------------------------------------------------------------------------------------------

    async def recover(self, remains: KernelRemains, wanted: KernelSpec, on_input: OnInput | None) -> Recovered | None:
        """Continue a killed host's kernel. Return it with its last cell; None if that fails, which ends the kernel."""
        from cellblock.host.kernels.kernel import Kernel
        from cellblock.host.survival.recovery import recover

        kernel = Kernel(
            self._family_of(remains),
            remains.number,
            remains.ends,
            wanted,
            self._on_closed(remains.launcher, remains.number),
            remains.recording,
            listen=False,
        )
        self.alive.add(kernel)
        try:
            for name, listener in remains.listeners.items():
                kernel.control.takers.pop(name, None)
                wanted.on_listener(remains.first, name, listener)
            kernel.memory.set_limits(kernel.wanted.policy.resources)
            cell = await recover(kernel, remains.recording, on_input)
            if kernel.ready.done() and not kernel.ready.exception():
                return kernel, cell
            _log.info("%s: its kernel was not ready when its host was killed", wanted.session)
        except (ValueError, KeyError, ProtocolError, LaunchError) as error:
            _log.warning("%s: its kernel cannot be taken over: %r", wanted.session, error)
        except BaseException:
            await kernel.close()
            raise
        await kernel.close()
        return None

    async def adopt(self, keeping: Keeping) -> None:
        """Take over a killed host's launchers and copies. End kernels that belong to no session."""
        kernels = keeping.kernels
        for zygote in keeping.zygotes.values():
            self.launchers.adopt(
                zygote,
                sum(kernel.launcher is zygote for kernel in kernels) + sum(one.launcher is zygote for one in keeping.families),
            )
        saved = [
            (session.copies, one) for session in keeping.sessions if session.state is not None for one in session.state.saved
        ]
        families, keeping.families = keeping.families, []
        for left in families:
            family = self._connected[left.first] = self._family(left.launcher, left.first, left.group)
            self.families.add(family)
            family.ports = left.ports
            family.awaited = sum(kernel.first == left.first for kernel in kernels)
            wanted = [(copies, one) for copies, one in saved if one.family == left.first]
            found = family.go_on(left.connection, {one.copy for _, one in wanted})
            for copies, one in wanted:
                copies[one.id] = found[one.copy]
        while keeping.surplus:
            self._forget(keeping, keeping.surplus.pop())
        await self._settle()

    async def discard(self, keeping: Keeping, remains: SessionRemains, store: Store | None) -> None:
        """End the kernel and the copies of a session that is not continued, and drop its files."""
        kernel, remains.kernel = remains.kernel, None
        if kernel is not None:
            self._forget(keeping, kernel)
        if remains.log is not None:
            remains.log.close()
        remains.drop(store)
        await self._settle()

    async def _settle(self) -> None:
        for family in [*self._connected.values()]:
            await family.settle()

    def _forget(self, keeping: Keeping, remains: KernelRemains) -> None:
        """End a kernel that is not adopted."""
        remains.close()  # closing its connection ends the kernel, even if its init serves others
        shared = {kernel.first for kernel in keeping.kernels} | {kernel.family.number for kernel in self.alive}
        family = self._connected.get(remains.first)
        if family is not None:
            family.awaited -= 1
        elif remains.first not in shared:
            remains.launcher.kill(remains.first)
        keeping.kernel_gone(remains.number)
        if remains.ends.group is not None and family is None and remains.first not in shared:
            remains.ends.group.remove()  # this kills all its processes, including kernels created from copies of this one
        self.launchers.kernel_closed(remains.launcher)

    # -- launch --------------------------------------------------------------------------------------------------------

    async def _launch_by(self, launcher: Launcher, wanted: KernelSpec) -> Kernel:
        await launcher.room(self._start_timeout)
        number = self.next_number()
        ends = launcher.launch(number, self._setup(launcher, wanted))
        return await self._ready(self._take(self._family(launcher, number, ends.group), number, ends, wanted))

    async def _ready(self, kernel: Kernel) -> Kernel:
        try:
            kernel.memory.set_limits(kernel.wanted.policy.resources)
            await kernel.started(self._start_timeout)
            await kernel.recording.held(self._start_timeout)
            await kernel.wake()  # init blocked names for it, and must be asked again when it is idle
        except BaseException as error:  # includes cancellation: we own the kernel until it is returned
            if isinstance(error, LaunchError) and not kernel.ready.done() and not kernel.family.shared:
                # It may be stopped, so the next kernel uses another launcher.
                self.launchers.retire(key_of(kernel.wanted), kernel.family.launcher)
            await kernel.discard()
            raise
        return kernel

    def _take(self, family: Family, number: int, ends: Ends, wanted: KernelSpec) -> Kernel:
        """Take ownership of a kernel. No await may come between."""
        from cellblock.host.kernels.kernel import Kernel

        try:
            recording = self._keeper.kernel_made(number, wanted, family, ends)
            kernel = Kernel(family, number, ends, wanted, self._on_closed(family.launcher, number), recording)
        except BaseException:  # of any kind: nothing else closes these
            ends.close()  # init ends when the other end of its control socket is closed
            raise
        self.alive.add(kernel)
        self.launchers.kernel_made(family.launcher)
        return kernel

    def _on_closed(self, launcher: Launcher, number: int) -> Callable[[Kernel], None]:
        def on_closed(kernel: Kernel) -> None:
            if kernel in self.alive:
                self.alive.remove(kernel)
                self.launchers.kernel_closed(launcher)
                self._keeper.kernel_gone(number)

        return on_closed

    def _family(self, launcher: Launcher, number: int, group: cgroups.Group | None) -> Family:
        """Return the family of a kernel and of all kernels created from its copies."""
        from cellblock.host.kernels.family import Family

        return Family(launcher, number, group, self._family_changed, self._family_closed)

    def _family_of(self, remains: KernelRemains) -> Family:
        """Return the family of an adopted kernel, shared with branches that were adopted before."""
        for kernel in self.alive:
            if (kernel.family.launcher, kernel.family.number) == (remains.launcher, remains.first):
                return kernel.family
        if (family := self._connected.get(remains.first)) is not None:
            return family
        return self._family(remains.launcher, remains.first, remains.ends.group)

    def _family_changed(self, family: Family) -> None:
        if family not in self.families:
            self.families.add(family)
            self.launchers.kernel_made(family.launcher)  # which stays for its copies as for a kernel
        self._keeper.family_made(family)

    def _family_closed(self, family: Family) -> None:
        self.families.discard(family)
        self._connected.pop(family.number, None)
        self._keeper.family_gone(family)
        self.launchers.kernel_closed(family.launcher)

    def _sweep(self, tier: Tier) -> None:
        """Remove leftovers of killed hosts in the background, which may take long."""
        if self._sweeping is None:
            with contextlib.suppress(RuntimeError):  # no thread can be started now; a later kernel tries again
                self._sweeping = asyncio.get_running_loop().run_in_executor(None, _remove_what_the_dead_left, tier.ours)

    def _setup(self, launcher: Launcher, wanted: KernelSpec) -> Setup:
        """Return the setup for a kernel's init, including the sandbox."""
        return wanted.tier.complete(wanted.setup, wanted.policy, self._facts, launcher.interpreter)

    def _make_launcher(self, key: LaunchKey) -> Launcher:
        interpreter, preload, tier, policy, workspace, environment = key
        starter = Starter() if policy is None or workspace is None else UnderSrt(policy, self._facts, workspace)
        groups = self._groups_for(tier)
        boot = Boot(interpreter, preload, tier.basis, starter, self._keeper.places, groups, environment=environment)
        if self._launch == "spawn":
            return Spawner(boot)
        return ForkServer(boot) if tier.wrapped else self._keeper.fork_server(boot, self._numbers)

    def _groups_for(self, tier: Tier) -> cgroups.Groups | None:
        if self._groups is None and tier.own_group and (place := cgroups.find().directory) is not None:
            self._groups = cgroups.Groups(place)
        return self._groups if tier.own_group else None


async def _verify(environment: str) -> None:
    """Check that a trusted environment has the files of its wheels, which sessions without a sandbox can damage.

    Raises:
        LaunchError: It has not.
    """
    from cellblock.host.environments.store import Store  # rarely used

    key = os.path.basename(os.path.dirname(environment))
    if wrong := await in_thread(Store().verify, [key]):
        raise LaunchError(
            f"nothing is preloaded from the environment in {environment}, because {wrong[0]} is damaged: "
            "'cellblock env verify' tells how to rebuild it"
        )


def _remove_what_the_dead_left(places: bool) -> None:
    remove_branches_of_the_dead()
    if places:
        from cellblock.host.clones.pins import remove_pins_of_the_dead  # rarely used

        remove_places_of_the_dead()
        remove_pins_of_the_dead()


def _make_room_for(kernels: int, open_files: int) -> None:
    """Raise this process's soft limit on descriptors if it is too low.

    A user's processes share one counter of descriptors in unreceived messages, and each may send more while the counter is
    below its own limit. Kernels must not be able to fill this process's limit.

    Args:
        kernels: Expected number of kernels.
        open_files: The limit of each process of a kernel.
    """
    # Up to a quarter of all descriptors is for tool ports (`serving.listen`), so that each session has its share.
    needed = kernels * _DESCRIPTORS_PER_KERNEL + _SPARE_DESCRIPTORS + 4 * min(kernels * _CONNECTIONS, _MAX_CONNECTIONS)
    needed = max(needed, open_files + _IN_MESSAGE)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    wanted = 2 * needed if hard == resource.RLIM_INFINITY else min(2 * needed, hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
