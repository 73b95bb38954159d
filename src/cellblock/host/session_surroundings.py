"""The environment of a session's kernels: workspace, directories, network, and the specification for the launcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cellblock.common.telemetry import MakeStep, untraced
from cellblock.errors import InvalidInputError
from cellblock.host import environment
from cellblock.host.launch.kernel_spec import Installer, KernelSpec, OnListener
from cellblock.host.options import ResolvedOptions, SessionOptions
from cellblock.host.output.limits import Limits
from cellblock.host.output.spill import SpillDirectory
from cellblock.host.packages import SessionPackages
from cellblock.host.place import NO_PLACES, PrivateDirectories
from cellblock.walls.egress.network import Hold, OnHost, SandboxNetwork, nothing_held
from cellblock.walls.packages.index import PackageIndex
from cellblock.walls.sandbox.plan import EGRESS_PORT
from cellblock.walls.sandbox.policy import Policy
from cellblock.wire.control import Commands, Listener, Setup
from cellblock.wire.sandbox import Step

if TYPE_CHECKING:
    from cellblock.host.survival.keeper import Keeper
    from cellblock.host.survival.remains import SessionRemains


# The port of each listener inside (0 for any), and the variable that passes it to the code.
_LISTENERS = {"egress": Listener(EGRESS_PORT, "CELLBLOCK_EGRESS_PORT"), "tools": Listener(0, "CELLBLOCK_TOOL_PORT")}


class SessionSurroundings:
    """The directories, the packages, the network and the environment of one session.

    Attributes:
        place: Prefix of the paths of its directories.
        network: Its access to the network, if its sandbox has none of its own.
        packages: Its packages.
        env: The whole environment of its kernels.
        kept: The number of the session, if its kernels should outlive this process.
        places: Hold its directories for the next process, if they should outlive this one.
    """

    def __init__(
        self,
        options: SessionOptions,
        resolved: ResolvedOptions,
        number: int,
        *,
        index: PackageIndex,
        keeper: Keeper,
        remains: SessionRemains | None,
        note: Callable[[str], None],
        on_host: OnHost | None,
        hold: Hold = nothing_held,
        step: MakeStep = untraced,
    ) -> None:
        """Compute the surroundings. Nothing is created yet.

        Args:
            options: The session's options.
            resolved: The options with all defaults filled in.
            number: The session's number.
            index: The package index.
            keeper: Keeps for the next host what outlives this process.
            remains: The remains of the session, if another host has made it.
            note: Shows a line to the reader of the session's output.
            on_host: Decides about hosts that the policy does not name.
            hold: Returns when a connection may be made.
            step: Begins the step of a connection.

        Raises:
            InvalidInputError: A name or a value cannot be in an environment.
        """
        tier = resolved.tier
        self._resolved = resolved
        kept = keeper.lasting and not tier.wrapped
        self._index = index
        self.kept = number if kept else None
        self.places = keeper if kept else NO_PLACES
        self.place = f"{keeper.places}{number}" if remains is None else remains.place
        rules = resolved.policy.network
        self.network = SandboxNetwork(rules, note, on_host, hold, step) if tier.ours else None
        # Beside the packages, so that whatever removes those after the host's death removes this as well.
        self._private = PrivateDirectories(f"{self.place}-own", self.places) if tier.private_directories else None
        self.env = self._environment(options.kernel_env or {}, resolved)
        if remains is not None:
            self.env = dict(remains.env)
        self.packages = SessionPackages(
            self.place, resolved.interpreter, self.env, resolved.cwd, tier=tier, places=self.places
        )

    def _environment(self, given: Mapping[str, str], resolved: ResolvedOptions) -> dict[str, str]:
        proxies = self.network.environment() if self.network is not None else {}
        home = resolved.tier.home
        if self._private is not None:
            home, proxies = self._private.home, proxies | self._private.environment
        env = environment.kernel_environment(resolved.interpreter, proxies | dict(given), home)
        if resolved.tier.wrapped and "HOME" not in given:
            del env["HOME"]  # only known inside
        return env

    def _mounts(self, policy: Policy) -> tuple[Step, ...]:
        """Return the mounts that bring its directories into its sandbox."""
        return self.packages.mounts(self._index, policy) + (() if self._private is None else self._private.mounts)

    def kernel_spec(
        self,
        options: SessionOptions,
        *,
        takers: Mapping[str, OnListener],
        installer: Installer,
        session: str,
    ) -> KernelSpec:
        """Return the specification of a session's kernels.

        Args:
            options: The session's options.
            takers: Callbacks for the listeners that its init makes, by name.
            installer: Installs packages.
            session: The session's name in messages.
        """
        resolved = self._resolved
        commands: Commands | None = None
        if options.on_command is not None:
            commands = "forbidden" if options.forbid_programs else "asked"
        mounts: tuple[Step, ...] = ()
        if resolved.tier.sandboxed:
            mounts = self._mounts(resolved.policy)
        setup = Setup(
            env=self.env,
            cwd=resolved.cwd,
            stay_in=resolved.stay_in,
            packages=self.packages.inside,
            commands=commands,
            listeners={name: _LISTENERS[name] for name in takers},
            mounts=mounts,
        )
        limits, spill_dir = Limits() if options.limits is None else options.limits, resolved.spill_dir
        if not isinstance(limits, Limits):
            raise InvalidInputError(f"limits must be Limits, not {limits!r}")
        spill_to = None if spill_dir is None else SpillDirectory(spill_dir, limits.spill, limits.spilled)
        return KernelSpec(
            interpreter=resolved.interpreter,
            preload=resolved.preload,
            tier=resolved.tier,
            policy=resolved.policy,
            setup=setup,
            limits=limits,
            spill_to=spill_to,
            takers=takers,
            installer=installer,
            on_command=options.on_command,
            forbid_programs=options.forbid_programs,
            session=session,
            kept=self.kept,
        )

    def withdraw_questions(self) -> None:
        """Ask about no host any more that stopped code wanted to reach."""
        if self.network is not None:
            self.network.withdraw_questions()

    def prepare(self) -> None:
        """Create the directories that a kernel needs; by now a process exists that removes them if we are killed."""
        self.packages.prepare()
        if self._private is not None:
            self._private.make()

    async def close(self) -> None:
        """Close its network and remove its directories."""
        if self.network is not None:
            await self.network.close()
        await self.packages.remove()
        if self._private is not None:
            await self._private.remove()
