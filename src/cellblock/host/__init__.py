"""Sessions on this machine: the trusted side. It starts zygotes by command line, never by import.

The names below are loaded on first use: much of it while the first zygote warms up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellblock.host.host import Host as Host
    from cellblock.host.options import SessionOptions as SessionOptions
    from cellblock.host.output.limits import Limits as Limits
    from cellblock.host.session import Session as Session
    from cellblock.walls.sandbox.policy import Filesystem as Filesystem
    from cellblock.walls.sandbox.policy import Network as Network
    from cellblock.walls.sandbox.policy import Policy as Policy
    from cellblock.walls.sandbox.policy import Resources as Resources
    from cellblock.walls.sandbox.srt import SrtPolicy as SrtPolicy
    from cellblock.walls.sandbox.tiers import Tier as Tier

_HOME = {
    "Filesystem": "cellblock.walls.sandbox.policy",
    "Host": "cellblock.host.host",
    "Limits": "cellblock.host.output.collect",
    "Network": "cellblock.walls.sandbox.policy",
    "Policy": "cellblock.walls.sandbox.policy",
    "Resources": "cellblock.walls.sandbox.policy",
    "Session": "cellblock.host.session",
    "SessionOptions": "cellblock.host.options",
    "SrtPolicy": "cellblock.walls.sandbox.srt",
    "Tier": "cellblock.walls.sandbox.tiers",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
