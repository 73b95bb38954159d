"""The surroundings of a session's kernels, which exist even before the first kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cellblock.host import environment
from cellblock.host.options import ResolvedOptions, SessionOptions
from cellblock.host.packages import SessionPackages
from cellblock.host.place import PrivateDirectories
from cellblock.walls.egress.network import OnHost, SandboxNetwork
from cellblock.walls.packages.index import PackageIndex
from cellblock.walls.sandbox.policy import Policy
from cellblock.wire.sandbox import Step

if TYPE_CHECKING:
    from cellblock.host.keeping import Keeping, SessionRemains


class SessionSurroundings:
    """The directories, the packages, the network and the environment of one session.

    Attributes:
        place: Prefix of the paths of its directories.
        network: Its access to the network, if its sandbox has none of its own.
        packages: Its packages.
        env: The whole environment of its kernels.
        kept: The number of the session, if its kernels should outlive this process.
    """

    def __init__(
        self,
        options: SessionOptions,
        resolved: ResolvedOptions,
        number: int,
        *,
        places: str,
        index: PackageIndex,
        keeping: Keeping | None,
        remains: SessionRemains | None,
        note: Callable[[str], None],
        on_host: OnHost | None,
    ) -> None:
        """Compute the surroundings. Nothing is created yet.

        Args:
            options: The session's options.
            resolved: The options with all defaults filled in.
            number: The session's number.
            places: Prefix of the paths of all sessions of the host.
            index: The package index.
            keeping: What outlives this process; None without a custodian.
            remains: The remains of the session, if another host has made it.
            note: Shows a line to the reader of the session's output.
            on_host: Decides about hosts that the policy does not name.

        Raises:
            InvalidInputError: A name or a value cannot be in an environment.
        """
        tier = resolved.tier
        kept = None if tier.wrapped else keeping
        self._index = index
        self.kept = None if kept is None else number
        self.place = f"{places}{number}" if remains is None else remains.place
        rules = resolved.policy.network
        self.network = SandboxNetwork(rules, note, on_host) if tier.ours else None
        # Beside the packages, so that whatever removes those after the host's death removes this as well.
        self._private = PrivateDirectories(f"{self.place}-own", kept) if tier.private_directories else None
        self.env = self._environment(options.kernel_env or {}, resolved)
        if remains is not None:
            self.env = dict(remains.env)
        self.packages = SessionPackages(self.place, resolved.interpreter, self.env, resolved.cwd, tier=tier, places=kept)

    def _environment(self, given: Mapping[str, str], resolved: ResolvedOptions) -> dict[str, str]:
        proxies = self.network.environment() if self.network is not None else {}
        home = resolved.tier.home
        if self._private is not None:
            home, proxies = self._private.home, proxies | self._private.environment
        env = environment.kernel_environment(resolved.interpreter, proxies | dict(given), home)
        if resolved.tier.wrapped and "HOME" not in given:
            del env["HOME"]  # only known inside
        return env

    def mounts(self, policy: Policy) -> tuple[Step, ...]:
        """Return the mounts that bring its directories into its sandbox."""
        return self.packages.mounts(self._index, policy) + (() if self._private is None else self._private.mounts)

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
