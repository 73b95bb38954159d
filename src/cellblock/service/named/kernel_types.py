"""Sessions in other languages, whose code runs in another Jupyter kernel (`worker.other_kernel`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cellblock.errors import InvalidInputError, LaunchError
from cellblock.model.sessions import OWN_KERNEL, Language

if TYPE_CHECKING:
    from cellblock.host import Session, Tier

_NAME = re.compile(r"[\w.-]{1,100}")
_START = 90.0


def check_kernel_type(name: str, tier: Tier) -> None:
    """Check a session's kernel type.

    Raises:
        InvalidInputError: The kernel type is invalid.
    """
    if name == OWN_KERNEL:
        return
    if not _NAME.fullmatch(name):
        raise InvalidInputError(f"kernel_type must be the name of a Jupyter kernelspec, not {name[:200]!r}")
    if not tier.connects_processes:
        raise InvalidInputError(
            f"kernel_type={name!r} needs isolate='native', or sandbox=False: isolate={tier.name!r} does not let the session's "
            "processes talk to each other as Jupyter kernels do"
        )


def cell(code: str, language: Language, kernel_type: str) -> str:
    """Return the cell that runs code in a session: ``language="bash"`` uses ``%%bash`` for every kernel type."""
    if language == "bash":
        return f"%%bash\n{code}"
    if kernel_type == OWN_KERNEL:
        return code
    return f"__import__('cellblock.worker.other_kernel').worker.other_kernel.run({kernel_type!r}, {code!r})"


async def start_kernel(session: Session, kernel_type: str) -> None:
    """Start the other kernel of a session, if it has one.

    Raises:
        LaunchError: The kernel cannot be started.
    """
    if kernel_type == OWN_KERNEL:
        return
    result = await session.execute(cell("", "python", kernel_type), timeout=_START)
    if not result.ok:
        raise LaunchError(result.error.evalue if result.error is not None else f"the kernel {kernel_type!r} did not start")


def has_run(position: str) -> bool:
    """Return whether the kernel of a position (`Session.position`) has run a cell before that position."""
    return not position.endswith("/0")


def kernel_of(position: str) -> str:
    return position.partition("/")[0]
