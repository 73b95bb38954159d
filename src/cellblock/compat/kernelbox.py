"""KernelBox's names, for programs that import `kernelbox` and cannot be changed, such as ``langchain-kernelbox``.

One line before the first import switches all of them over::

    import cellblock.compat.kernelbox; cellblock.compat.kernelbox.install()

docs/migrating.md lists the differences.
"""

from __future__ import annotations

import sys

from cellblock import (
    ErrorInfo,
    ExecutionResult,
    KernelRecord,
    OutputItem,
    destroy,
    execute,
    execute_with_retry,
    get_or_create,
)
from cellblock.errors import StateError
from cellblock.service.settings import Settings as KernelBoxConfig

__all__ = [
    "ErrorInfo",
    "ExecutionResult",
    "KernelBoxConfig",
    "KernelRecord",
    "OutputItem",
    "destroy",
    "execute",
    "execute_with_retry",
    "get_or_create",
]

_NAME = "kernelbox"


def install() -> None:
    """Make ``import kernelbox`` find this module, even if KernelBox is installed. The operation is idempotent.

    Raises:
        StateError: KernelBox was already imported, and other modules may hold its functions.
    """
    if sys.modules.setdefault(_NAME, sys.modules[__name__]) is not sys.modules[__name__]:
        raise StateError(
            "kernelbox is imported already: call cellblock.compat.kernelbox.install() before the module that imports it"
        )
