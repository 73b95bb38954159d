"""Computes the specification of a session's kernels from its options."""

from __future__ import annotations

from collections.abc import Mapping

from cellblock.egress.network import SandboxNetwork
from cellblock.errors import InvalidInputError
from cellblock.host import environment
from cellblock.host.launch.kernel_spec import Installer, KernelSpec, OnListener
from cellblock.host.options import ResolvedOptions, SessionOptions
from cellblock.host.output.limits import Limits
from cellblock.host.output.spill import SpillDirectory
from cellblock.host.packages import SessionPackages
from cellblock.host.place import PrivateDirectories
from cellblock.packages.index import PackageIndex
from cellblock.sandbox.plan import EGRESS_PORT, HOME
from cellblock.wire.control import Commands, Listener, Setup
from cellblock.wire.sandbox import Step

# The port of each listener inside (0 is any), and the variable that tells it to the code.
_LISTENERS = {"egress": Listener(EGRESS_PORT, "CELLBLOCK_EGRESS_PORT"), "tools": Listener(0, "CELLBLOCK_TOOL_PORT")}


def session_environment(
    given: Mapping[str, str],
    resolved: ResolvedOptions,
    network: SandboxNetwork | None,
    private: PrivateDirectories | None = None,
) -> dict[str, str]:
    """Return the whole environment of a session's kernels.

    Args:
        given: What the caller gives.
        resolved: The session's options.
        network: The session's way to the network, if its sandbox has none of its own.
        private: What it has in place of /tmp and a home directory, if it has no mounts.

    Raises:
        InvalidInputError: A name or a value cannot be in an environment.
    """
    proxies = network.environment() if network is not None else {}
    home = HOME if resolved.isolate == "native" else None
    if private is not None:
        home, proxies = private.home, proxies | private.environment
    env = environment.kernel_environment(resolved.interpreter, proxies | dict(given), home)
    if resolved.isolate == "srt" and "HOME" not in given:
        del env["HOME"]  # known inside only
    return env


def kernel_spec(
    options: SessionOptions,
    resolved: ResolvedOptions,
    env: dict[str, str],
    *,
    takers: Mapping[str, OnListener],
    packages: SessionPackages,
    private: PrivateDirectories | None = None,
    index: PackageIndex,
    installer: Installer,
    session: str,
    kept: int | None = None,
) -> KernelSpec:
    """Return what each kernel of a session is asked to be.

    Args:
        options: The session's options.
        resolved: What they come to.
        env: The environment of its kernels.
        takers: Who takes the listeners that its init makes, by name.
        packages: The packages of the session.
        private: As for `session_environment`.
        index: Where they come from.
        installer: Installs them.
        session: The session, as messages call it.
        kept: As in `KernelSpec`.
    """
    commands: Commands | None = None
    if options.on_command is not None:
        commands = "forbidden" if options.forbid_programs else "asked"
    mounts: tuple[Step, ...] = ()
    if resolved.isolate != "none":
        mounts = packages.mounts(index, resolved.policy) + (() if private is None else private.mounts)
    setup = Setup(
        env=env,
        cwd=resolved.cwd,
        stay_in=resolved.stay_in,
        packages=packages.inside,
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
        isolate=resolved.isolate,
        policy=resolved.policy,
        setup=setup,
        limits=limits,
        spill_to=spill_to,
        takers=takers,
        installer=installer,
        on_command=options.on_command,
        forbid_programs=options.forbid_programs,
        session=session,
        kept=kept,
    )
