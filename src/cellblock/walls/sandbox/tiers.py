"""The isolation tiers, and all their differences.

The rest of the trusted side asks a tier, and compares no names. docs/architecture.md says how to add one.
"""

from __future__ import annotations

import functools
import secrets
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeAlias

from cellblock.common.config import Isolate
from cellblock.errors import InvalidInputError
from cellblock.walls.sandbox import probe, srt
from cellblock.walls.sandbox.fitting import fit
from cellblock.walls.sandbox.plan import ENVIRONMENT_PLACE, HOME, make_plan
from cellblock.walls.sandbox.policy import Policy
from cellblock.walls.sandbox.probe import Facts
from cellblock.walls.sandbox.steps import Failure
from cellblock.wire.control import Setup

Basis: TypeAlias = Literal["native", "landlock", "none"]
"""How a launcher's process prepares for sandboxes before the first kernel: an argument of `cellblock.launch.zygote.boot`."""


class Tier(Protocol):
    """One way to isolate kernels.

    Exactly one of three is true: there is no sandbox, cellblock creates it (`ours`), or another program does (`wrapped`).

    Attributes:
        name: Its name for users.
        described: Its description, for messages: "this machine cannot run …".
        sandboxed: Whether there is a boundary: a policy applies, and code in the workspace is distrusted.
        ours: Whether cellblock creates the boundary: it limits memory, can forbid programs, and forwards connections to hosts.
        wrapped: Whether another program creates the boundary, around the launcher. Then a launcher serves one policy in one
            workspace and ends with this process, and some of its directories are only known inside.
        basis: How the launcher's process prepares for it.
        policy_type: The class of its policies, into which its configuration is parsed.
        own_network: Whether a session has its own network, where nothing else can reach its ports.
        own_group: Whether each kernel has a control group, if the machine allows it.
        home: The home directory inside, if it is the same path for all sessions.
        private_directories: Whether two directories on disk replace ``/tmp`` and the home directory, because nothing can be
            mounted.
        holds_names: Whether code can be prevented from creating, replacing or moving a file of a given name.
        connects_processes: Whether processes of a session can connect to each other, as Jupyter kernels do.
    """

    name: Isolate
    described: str
    sandboxed: bool
    ours: bool
    wrapped: bool
    basis: Basis
    policy_type: type[Policy]
    own_network: bool
    own_group: bool
    home: str | None
    private_directories: bool
    holds_names: bool
    connects_processes: bool

    def missing(self) -> str | Failure | None:
        """Return what this machine lacks, or the step that fails on it; None or an empty string if the tier can be tried."""

    def fit(self, policy: Policy) -> Policy:
        """Return a policy with the restrictions that no policy can lift.

        Raises:
            InvalidInputError: The policy needs something that this tier cannot do.
        """

    def complete(self, setup: Setup, policy: Policy, facts: Facts, interpreter: tuple[str, ...] | None) -> Setup:
        """Return the setup for a kernel's init, with the sandbox in it.

        Args:
            setup: The setup without the sandbox.
            policy: The fitted policy.
            facts: Facts about this machine.
            interpreter: The directories of its interpreter, if the launcher reported them.
        """

    def packages(self, place: str) -> str:
        """Return the path of a session's own packages as its code sees it."""

    def environment(self, path: str) -> str:
        """Return the path of an environment of packages as its code, and a zygote that imports from it, see it."""

    def shown(self, path: str, name: str) -> str:
        """Return the path by which code sees a file or directory of the host's.

        Args:
            path: Its path outside.
            name: Its name inside, if the tier mounts it elsewhere.
        """


class Native:
    """Namespaces and mounts of Linux, and system-call filters."""

    name: Isolate = "native"
    described = "a sandbox"
    sandboxed = True
    ours = True
    wrapped = False
    basis: Basis = "native"
    policy_type: type[Policy] = Policy
    own_network = True
    own_group = True
    home: str | None = HOME
    private_directories = False
    holds_names = True
    connects_processes = True

    def missing(self) -> str | Failure | None:
        return probe.unsupported() or probe.forbidden()

    def fit(self, policy: Policy) -> Policy:
        return fit(policy)

    def complete(self, setup: Setup, policy: Policy, facts: Facts, interpreter: tuple[str, ...] | None) -> Setup:
        """Return the setup with the plan. Without the interpreter's directories, init makes the plan (`Ground.plan`)."""
        if interpreter is None:
            return replace(setup, policy=policy.to_dict())
        return replace(setup, plan=make_plan(policy, facts, setup.cwd, interpreter))

    def packages(self, place: str) -> str:
        """Return a path in the session's own /tmp, where every sandbox can mount a directory."""
        return "/tmp/.packages"

    def environment(self, path: str) -> str:
        return ENVIRONMENT_PLACE

    def shown(self, path: str, name: str) -> str:
        """Return a path in the session's own /tmp."""
        return f"/tmp/{name}"


class Landlock:
    """Landlock and system-call filters, without namespaces and mounts: it guarantees less (docs/landlock.md)."""

    name: Isolate = "landlock"
    described = "a sandbox made of Landlock"
    sandboxed = True
    ours = True
    wrapped = False
    basis: Basis = "landlock"
    policy_type: type[Policy] = Policy
    own_network = False
    own_group = False
    home: str | None = None
    private_directories = True
    holds_names = False
    connects_processes = False

    def missing(self) -> str | Failure | None:
        from cellblock.walls.linux import landlock  # rarely used

        return "; ".join(landlock.missing())

    def fit(self, policy: Policy) -> Policy:
        if policy.network.allow or policy.network.ask:
            raise InvalidInputError(
                "isolate='landlock' has no network: without a network namespace, a session cannot be restricted to the "
                "hosts of its policy. Use isolate='native', or remove the hosts from the policy"
            )
        if policy.unix_sockets:
            raise InvalidInputError(
                "isolate='landlock' allows no local sockets except pairs, because others could reach the machine's services: "
                "remove allowAllUnixSockets from the policy"
            )
        _check_mountless(policy)
        return fit(policy, names_can_be_held=False)

    def complete(self, setup: Setup, policy: Policy, facts: Facts, interpreter: tuple[str, ...] | None) -> Setup:
        from cellblock.walls.linux import landlock

        return replace(setup, policy=_as_data(policy), landlock=landlock.version())

    def packages(self, place: str) -> str:
        return place

    def environment(self, path: str) -> str:
        return path

    def shown(self, path: str, name: str) -> str:
        return path


class Srt:
    """Anthropic's sandbox-runtime (docs/srt.md)."""

    name: Isolate = "srt"
    described = "a sandbox of srt"
    sandboxed = True
    ours = False
    wrapped = True
    basis: Basis = "none"
    policy_type: type[Policy] = srt.SrtPolicy
    own_network = False
    own_group = False
    home: str | None = None
    private_directories = False
    holds_names = True
    connects_processes = False

    def missing(self) -> str | Failure | None:
        return "; ".join(srt.missing())

    def fit(self, policy: Policy) -> Policy:
        """Return the policy with the restrictions that no policy can lift, or the user's own settings of srt unchanged."""
        _check_mountless(policy)
        return policy.checked() if isinstance(policy, srt.SrtPolicy) else fit(policy)

    def complete(self, setup: Setup, policy: Policy, facts: Facts, interpreter: tuple[str, ...] | None) -> Setup:
        return srt.complete(setup, policy, facts)

    def packages(self, place: str) -> str:
        """Return only a name: the directory is known only once the sandbox exists."""
        return secrets.token_hex(8)

    def environment(self, path: str) -> str:
        return path

    def shown(self, path: str, name: str) -> str:
        return path


class Unsandboxed:
    """No sandbox: kernels have all permissions of this process."""

    name: Isolate = "none"
    described = "kernels without a sandbox"
    sandboxed = False
    ours = False
    wrapped = False
    basis: Basis = "none"
    policy_type: type[Policy] = Policy
    own_network = False
    own_group = False
    home: str | None = None
    private_directories = False
    holds_names = False
    connects_processes = True

    def missing(self) -> str | Failure | None:
        return None

    def fit(self, policy: Policy) -> Policy:
        """Return the policy unchanged. A host's policy is fitted again for each session with a sandbox."""
        return fit(policy)

    def complete(self, setup: Setup, policy: Policy, facts: Facts, interpreter: tuple[str, ...] | None) -> Setup:
        return setup

    def packages(self, place: str) -> str:
        return place

    def environment(self, path: str) -> str:
        return path

    def shown(self, path: str, name: str) -> str:
        return path


NATIVE, LANDLOCK, SRT, NONE = Native(), Landlock(), Srt(), Unsandboxed()

TIERS: dict[str, Tier] = {tier.name: tier for tier in (NATIVE, LANDLOCK, SRT, NONE)}
"""All tiers by name, in the order of messages."""


def _check_mountless(policy: Policy) -> None:
    """Check that a policy for another sandbox needs no mount: a second name of the workspace, or a device.

    Raises:
        InvalidInputError: It does.
    """
    if policy.devices:
        raise InvalidInputError("devices need isolate='native': leave out devices (--device) with other sandboxes")
    if policy.filesystem.home_is_workspace:
        raise InvalidInputError("home_is_workspace needs isolate='native': other sandboxes cannot give it a second name")


@functools.lru_cache(maxsize=64)
def _as_data(policy: Policy) -> dict[str, Any]:
    """Return a policy as data for init, cached because the kernels of a session, and usually of a host, share it."""
    return policy.to_dict()
