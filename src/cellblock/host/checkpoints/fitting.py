"""Checks whether a session may continue with a kernel that was made for another one: both must have the same sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellblock.errors import CheckpointError
from cellblock.walls.sandbox.paths import is_inside

if TYPE_CHECKING:
    from cellblock.host.launch.kernel_spec import KernelSpec


def check_same_sandbox(theirs: KernelSpec, ours: KernelSpec) -> None:
    """Check that kernels of one session can serve another.

    A kernel keeps the sandbox that it was started in, whatever options its new session has.

    Args:
        theirs: The kernel specification of the checkpoint's session.
        ours: The kernel specification of the other session.

    Raises:
        CheckpointError: They differ; the message says in what.
    """
    if theirs.tier is not ours.tier:
        raise CheckpointError(
            f"the checkpoint was made with isolate={theirs.tier.name!r}, and this session has {ours.tier.name!r}: a kernel "
            "keeps the sandbox that it was started in"
        )
    if theirs.setup.commands != ours.setup.commands:
        raise CheckpointError(
            "the checkpoint's session and this one handle shell commands differently (on_command, forbid_programs)"
        )
    if not ours.tier.sandboxed:
        return
    if theirs.policy != ours.policy:
        raise CheckpointError("the checkpoint was made with another policy: a kernel keeps the sandbox that it was started in")
    if not is_inside(ours.setup.cwd, theirs.setup.cwd):
        raise CheckpointError(
            f"the checkpoint's sandbox has the workspace {theirs.setup.cwd}, and cannot reach this session's directory, "
            f"{ours.setup.cwd}"
        )
