"""The environment of a session's kernels: workspace, directories, network, and the kernel specification."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cellblock.common import config
from cellblock.errors import InvalidInputError, StateError
from cellblock.host import environment
from cellblock.host.devices import SessionDevices
from cellblock.host.kernels.kernel_slot import KernelObserver
from cellblock.host.launch.kernel_spec import KernelSpec
from cellblock.host.launch.session_listeners import Serve, SessionListeners
from cellblock.host.options import ResolvedOptions, SessionHooks, SessionOptions, resolve
from cellblock.host.output.limits import Limits
from cellblock.host.output.spill import SpillDirectory
from cellblock.host.packages import SessionPackages
from cellblock.host.place import NO_PLACES, Places, PrivateDirectories, SessionPlace
from cellblock.walls.proxy.network import SandboxNetwork
from cellblock.walls.sandbox.paths import is_inside
from cellblock.walls.sandbox.plan import EGRESS_PORT
from cellblock.wire.control import Commands, Listener, Setup
from cellblock.wire.sandbox import Step

if TYPE_CHECKING:
    from cellblock.common.environments import PackageSet
    from cellblock.host.checkpoints.branches import BranchDirectory
    from cellblock.host.checkpoints.checkpoint import Beginning
    from cellblock.host.clones.clone import Clone
    from cellblock.host.files.walls import Walls
    from cellblock.host.holding import Holding
    from cellblock.host.kernels.cells import Cells
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.kernels.kernel_slot import KernelSlot
    from cellblock.host.launch.kernel_spec import RunningKernel
    from cellblock.host.session_host import SessionHost
    from cellblock.host.survival.keeper import Keeper
    from cellblock.host.survival.remains import SessionRemains
    from cellblock.host.telemetry import SessionTrace
    from cellblock.walls.sandbox.probe import Facts
    from cellblock.walls.sandbox.tiers import Tier
    from cellblock.wire.messages import Install


# For each listener: its port inside (0 for any), and the variable that passes it to the code.
_LISTENERS = {"egress": Listener(EGRESS_PORT, "CELLBLOCK_EGRESS_PORT"), "tools": Listener(0, "CELLBLOCK_TOOL_PORT")}


@dataclass(frozen=True)
class RunningParts:
    """The parts of a session that run its code.

    Attributes:
        kernels: Its kernels.
        cells: Its cells.
        holding: Blocks tool calls and connections while `eager` runs ahead of the model.
        trace: Its spans.
    """

    kernels: KernelSlot
    cells: Cells
    holding: Holding
    trace: SessionTrace


def limits_of(options: SessionOptions) -> Limits:
    """Return the limits on the retained output of a session.

    Raises:
        InvalidInputError: The option is invalid.
    """
    limits = Limits() if options.limits is None else options.limits
    if not isinstance(limits, Limits):
        raise InvalidInputError(f"limits must be Limits, not {limits!r}")
    return limits


@dataclass(frozen=True)
class Workspace:
    """Where a session works.

    Attributes:
        resolved: The session's options, filled in.
        directory: The working directory of its kernels.
        walls: The paths that the host must not access on the session's behalf, if any.
        branch: The directory of its files, if it is a branch with its own files.
        clone: The clone that it works in, if it does.
    """

    resolved: ResolvedOptions
    directory: str
    walls: Walls | None
    branch: BranchDirectory | None = None
    clone: Clone | None = None

    @classmethod
    def find(
        cls,
        host: SessionHost,
        number: int,
        options: SessionOptions,
        hooks: SessionHooks,
        remains: SessionRemains | None,
        start_from: Beginning | None,
    ) -> Workspace:
        """Return where a session will work, without creating anything.

        Args:
            host: Its host.
            number: Its number.
            options: Its options.
            hooks: Its hooks.
            remains: The remains of an earlier host's session, if it continues one.
            start_from: The state that it starts from, if any.

        Raises:
            InvalidInputError, InterpreterError, SandboxError: An option is invalid, or cannot be met here.
            StateError, UnsupportedError: The session cannot begin with that state, or cannot work in a clone.
        """
        branch = start_from.directory() if start_from is not None else None if remains is None else remains.branch
        resolved = _resolve(host, options, branch, start_from)
        if start_from is not None and resolved.policy.devices:
            raise StateError(
                f"{hooks.title(number)} cannot begin with the state of a session that has {resolved.policy.devices[0]}"
            )
        clone = None
        if options.workspace is not None:
            clone = _clone(host.keeper, number, options, resolved, hooks, remains, start_from, branch)
            resolved = clone.move(resolved, host.facts)
        directory = resolved.stay_in or resolved.cwd
        return cls(resolved, directory, _walls(resolved, host.facts, directory), branch, clone)


def _resolve(
    host: SessionHost, options: SessionOptions, branch: BranchDirectory | None, start_from: Beginning | None
) -> ResolvedOptions:
    """Resolve the options of a session, which may be a branch with its own files.

    A session from a checkpoint of the same host gets the options of the checkpoint's session, because a kernel stays in its
    sandbox. That holds even if this program's directory has changed.
    """
    origin = None if start_from is None else start_from.checkpoint.moment.origin
    if origin is not None and origin.host is host and options.same_surroundings(origin.options):
        resolved = origin.resolved
    elif branch is None or options.workspace is not None:  # a clone is moved there later
        return resolve(options, host.defaults, host.facts)
    else:
        resolved = resolve(replace(options, working_dir=branch.root), host.defaults, host.facts)
    return resolved if branch is None else replace(resolved, stay_in=branch.files)


def _clone(
    keeper: Keeper,
    number: int,
    options: SessionOptions,
    resolved: ResolvedOptions,
    hooks: SessionHooks,
    remains: SessionRemains | None,
    start_from: Beginning | None,
    branch: BranchDirectory | None,
) -> Clone:
    """Return the clone of a session, which is made later. It may begin with uncommitted changes of the project."""
    from cellblock.host.clones.clone import Clone  # rarely used

    origin = None if start_from is None else start_from.checkpoint.moment.origin.clone
    if start_from is not None and (origin is None or start_from.files != "copy"):
        raise StateError(
            f"session {number} cannot begin with that state, because it would have no clone: fork a session in a clone, "
            "without files='shared', or make a new session with workspace='clone'"
        )
    directories = None if branch is None else (branch.root, branch.files)
    how = (resolved, _place(keeper, number, remains), hooks.name, _places(keeper, resolved.tier))
    changes = options.workspace == "dirty-clone"
    return Clone(*how, changes=changes, loads=hooks.loads, branch=directories, origin=origin)


def _place(keeper: Keeper, number: int, remains: SessionRemains | None) -> str:
    """Return the path prefix of a session's directories."""
    return f"{keeper.places}{number}" if remains is None else remains.place


def _places(keeper: Keeper, tier: Tier) -> Places:
    """Return what preserves a session's directories for the next process, if they should outlive this one."""
    return keeper if keeper.lasting and not tier.wrapped else NO_PLACES


def _walls(resolved: ResolvedOptions, facts: Facts, directory: str) -> Walls | None:
    """Return the paths that the host must not access on a session's behalf, or None.

    Without a sandbox, these are cellblock's own state, if the session works there. Opening SQLite's files outside SQLite drops
    this process's locks (`common.database`), and undo must not restore records of decisions.
    """
    from cellblock.host.files.walls import Walls

    if not resolved.tier.sandboxed:
        state = os.path.realpath(config.state_directory())
        return Walls((state,)) if is_inside(state, os.path.realpath(directory)) else None
    walls = Walls.of(resolved.policy, facts, os.path.realpath(resolved.cwd), os.path.realpath(directory))
    # If names cannot be protected, an undo must restore the session's changes there.
    return walls if resolved.tier.holds_names else replace(walls, protected=())


class SessionSurroundings(KernelObserver):
    """The directories, packages, network and environment of one session.

    Attributes:
        place: Path prefix of its directories.
        network: Its network access, if its sandbox has none of its own.
        packages: Its packages.
        env: The complete environment of its kernels.
        kept: The number of the session, if its kernels should outlive this process.
        places: Preserves its directories for the next process, if they should outlive this one.
        keys: Its secrets, and what opens its connections; None without a network of its own.
        clone: The clone that it works in, if it does.
        devices: Its devices.
        listeners: The listeners of its kernels' sandboxes.
    """

    def __init__(
        self,
        host: SessionHost,
        number: int,
        options: SessionOptions,
        hooks: SessionHooks,
        workspace: Workspace,
        parts: RunningParts,
        remains: SessionRemains | None,
    ) -> None:
        """Compute the surroundings without creating anything.

        Args:
            host: The session's host.
            number: The session's number.
            options: The session's options.
            hooks: The hooks of the session's frontend.
            workspace: Where the session works.
            parts: The parts of the session that run its code.
            remains: The remains of an earlier host's session, if it continues one.

        Raises:
            InvalidInputError: A name or a value is invalid in an environment.
        """
        resolved = workspace.resolved
        tier = resolved.tier
        self._host = host
        self._resolved = resolved
        self._cells = parts.cells
        self._name = hooks.title(number)
        self.places = _places(host.keeper, tier)
        self.kept = None if self.places is NO_PLACES else number
        self.place = _place(host.keeper, number, remains)
        self.clone = workspace.clone
        self.keys = resolved.keys
        if remains is not None:
            self._resume_keys(remains)
        self._in_use = False
        self._trust = SessionPlace(f"{self.place}-keys", self.places)
        self.devices = SessionDevices(f"{self.place}-devices", resolved.policy.devices if tier.sandboxed else (), self.places)
        self.network = self._make_network(options, hooks, parts) if tier.ours else None
        self._services: dict[str, Serve] = {}
        if self.network is not None and self.network.reaches:
            self._services["egress"] = self.network.serve
        if hooks.tool_port is not None:
            self._services["tools"] = hooks.tool_port
        self.listeners = SessionListeners(self._services, functools.partial(host.keeper.listener_taken, self.kept))
        # Next to the packages, so that the cleanup after the host's death removes both.
        self._private = PrivateDirectories(f"{self.place}-own", self.places) if tier.private_directories else None
        self.env = self._environment(options.kernel_env or {}, resolved)
        if remains is not None:
            self.env = dict(remains.env)
        self.packages = SessionPackages(self.place, tier=tier, places=self.places)
        parts.kernels.observe(self)

    def _resume_keys(self, remains: SessionRemains) -> None:
        """Continue an earlier host's secrets."""
        if self.keys is None:
            return
        if remains.keys is None:
            self.keys.trust.mounted = False  # an earlier version made the sandbox
        else:
            self.keys.resume(remains.keys)
            remains.keys = None

    def _make_network(self, options: SessionOptions, hooks: SessionHooks, parts: RunningParts) -> SandboxNetwork:
        resolved, live = self._resolved, self._resolved.network
        if live is not None and hooks.network is not None:
            live = hooks.network(live)
        return SandboxNetwork(
            live,
            parts.cells.note,
            options.on_host,
            parts.holding.wait,
            parts.trace.step,
            self.keys,
            resolved.policy.network,
            options.on_request,
        )

    def _environment(self, given: Mapping[str, str], resolved: ResolvedOptions) -> dict[str, str]:
        proxies = self.network.environment() if self.network is not None else {}
        if self.keys is not None:
            proxies |= self.keys.environment
            if twice := self.keys.variables.keys() & given.keys():
                raise InvalidInputError(f"kernel_env: {min(twice)} is also the name of a secret: leave one of them out")
        home = resolved.tier.home
        if self._private is not None:
            home, proxies = self._private.home, proxies | self._private.environment
        env = environment.kernel_environment(resolved.interpreter, proxies | dict(given), home)
        if resolved.tier.wrapped and "HOME" not in given:
            del env["HOME"]  # only known inside
        return env

    def _mounts(self) -> tuple[Step, ...]:
        """Return the mounts that bring its directories into its sandbox."""
        mounts = self.packages.mounts + (() if self._private is None else self._private.mounts)
        if self.clone is not None:
            mounts += self.clone.mounts
        return mounts if self.keys is None else mounts + self.keys.trust.mounts(self._bundle)

    @property
    def _bundle(self) -> str:
        return f"{self._trust.path}/ca.pem"

    async def read_secrets(self) -> None:
        """Read the values of the secrets, before the first kernel.

        Raises:
            InvalidInputError: A value cannot be read.
            UnsupportedError: The extra ``keys`` is needed, and not installed.
        """
        if self.keys is not None:
            self._in_use = True
            await self.keys.enter(self._bundle)
            await self.keys.read()

    def with_environment(self, wanted: KernelSpec, given: PackageSet | None) -> KernelSpec:
        """Return a kernel's specification with the environment of packages, if one was chosen.

        Args:
            wanted: The specification without it.
            given: The option `environment`, if its packages are chosen by it: `preload` then means modules of these packages.

        Raises:
            PreloadError: The modules would be imported from an environment that is not trusted.
        """
        environment, modules = self.packages.environment, self._resolved.preload
        if environment is None:
            return wanted
        mounts = self._mounts() if self._resolved.tier.sandboxed else ()
        wanted = replace(wanted, setup=replace(wanted.setup, environment=self.packages.environment_inside, mounts=mounts))
        if given is None or not modules:
            return wanted
        self.packages.check_trusted(modules, given)
        return replace(wanted, preload=modules, environment=environment.path)

    def proxies(self, port: int) -> Mapping[str, str]:
        """Return the environment variables for a proxy on a port of the session."""
        return {} if self.network is None else self.network.environment(port)

    async def _install(self, kernel: RunningKernel, request: Install) -> int:
        return await self.packages.install(kernel, request, self._host.environments, self._cells.past.state)

    def kernel_spec(self, options: SessionOptions) -> KernelSpec:
        """Return the specification of a session's kernels.

        Args:
            options: The session's options.
        """
        resolved = self._resolved
        commands: Commands | None = None
        if options.on_command is not None:
            commands = "forbidden" if options.forbid_programs else "asked"
        mounts: tuple[Step, ...] = ()
        if resolved.tier.sandboxed:
            mounts = self._mounts()
        setup = Setup(
            env=self.env,
            cwd=resolved.cwd,
            stay_in=resolved.stay_in if self.clone is None else self.clone.shown,
            packages=self.packages.inside,
            commands=commands,
            listeners={name: _LISTENERS[name] for name in self._services},
            mounts=mounts,
        )
        limits, spill_dir = limits_of(options), resolved.spill_dir
        spill_to = None if spill_dir is None else SpillDirectory(spill_dir, limits.spill, limits.spilled)
        return KernelSpec(
            interpreter=resolved.interpreter,
            preload=() if options.environment is not None else resolved.preload,
            tier=resolved.tier,
            policy=resolved.policy,
            setup=setup,
            limits=limits,
            spill_to=spill_to,
            on_listener=self.listeners.take,
            installer=self._install,
            on_command=options.on_command,
            forbid_programs=options.forbid_programs,
            session=self._name,
            kept=self.kept,
        )

    def kernel_recorded(self, kernel: Kernel) -> None:
        """Serve the session's new kernel only."""
        self.listeners.settle(kernel.family.number)

    def code_stopped(self) -> None:
        """Withdraw pending questions about hosts that the code wanted to reach."""
        if self.network is not None:
            self.network.withdraw_questions()

    def prepare(self) -> None:
        """Create the directories that a kernel needs. By now a process exists that removes them if we are killed."""
        self.packages.prepare()
        if self.keys is not None:
            self._trust.make()
            self.keys.trust.make(self._bundle)
        if self._private is not None:
            self._private.make()

    async def close(self) -> None:
        """Close the network and remove the directories."""
        if self.network is not None:
            await self.network.close()
        if self.keys is not None and self._in_use:
            self._in_use = False
            self.keys.leave()
        self.devices.release()
        await self._trust.remove()
        await self.packages.remove()
        if self.clone is not None:
            await self.clone.remove()
        if self._private is not None:
            await self._private.remove()
