"""Computes the specification of a session's kernels from its options."""

from __future__ import annotations

from collections.abc import Mapping

from cellblock.errors import InvalidInputError
from cellblock.host.launch.kernel_spec import Installer, KernelSpec, OnListener
from cellblock.host.options import ResolvedOptions, SessionOptions
from cellblock.host.output.limits import Limits
from cellblock.host.output.spill import SpillDirectory
from cellblock.host.session_surroundings import SessionSurroundings
from cellblock.walls.sandbox.plan import EGRESS_PORT
from cellblock.wire.control import Commands, Listener, Setup
from cellblock.wire.sandbox import Step

# The port of each listener inside (0 for any), and the variable that passes it to the code.
_LISTENERS = {"egress": Listener(EGRESS_PORT, "CELLBLOCK_EGRESS_PORT"), "tools": Listener(0, "CELLBLOCK_TOOL_PORT")}


def kernel_spec(
    options: SessionOptions,
    resolved: ResolvedOptions,
    around: SessionSurroundings,
    *,
    takers: Mapping[str, OnListener],
    installer: Installer,
    session: str,
) -> KernelSpec:
    """Return the specification of a session's kernels.

    Args:
        options: The session's options.
        resolved: The options with all defaults filled in.
        around: The surroundings of its kernels.
        takers: Callbacks for the listeners that its init makes, by name.
        installer: Installs packages.
        session: The session's name in messages.
    """
    commands: Commands | None = None
    if options.on_command is not None:
        commands = "forbidden" if options.forbid_programs else "asked"
    mounts: tuple[Step, ...] = ()
    if resolved.tier.sandboxed:
        mounts = around.mounts(resolved.policy)
    setup = Setup(
        env=around.env,
        cwd=resolved.cwd,
        stay_in=resolved.stay_in,
        packages=around.packages.inside,
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
        kept=around.kept,
    )
