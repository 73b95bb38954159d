"""Sessions on this machine: the trusted side. It starts zygotes by command line, never by import.

The names below are loaded on first use: much of it while the first zygote warms up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellblock.host.host import Host
    from cellblock.host.options import SessionOptions
    from cellblock.host.output.limits import Limits
    from cellblock.host.session import Session
    from cellblock.sandbox.policy import Filesystem, Network, Policy, Resources
    from cellblock.sandbox.srt import SrtPolicy

_HOME = {
    "Filesystem": "cellblock.sandbox.policy",
    "Host": "cellblock.host.host",
    "Limits": "cellblock.host.output.collect",
    "Network": "cellblock.sandbox.policy",
    "Policy": "cellblock.sandbox.policy",
    "Resources": "cellblock.sandbox.policy",
    "Session": "cellblock.host.session",
    "SessionOptions": "cellblock.host.options",
    "SrtPolicy": "cellblock.sandbox.srt",
}

__all__ = [
    "Filesystem",
    "Host",
    "Limits",
    "Network",
    "Policy",
    "Resources",
    "Session",
    "SessionOptions",
    "SrtPolicy",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
