"""MCP tools. The rooms: `mcp` (reach a server), `serving` (take calls in), `apigen` (typed APIs), `calling` (call from code).

`from cellblock.tools import search` is what code in a session writes to find a tool, and `actions` to save one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellblock.tools.calling import actions, search

__all__ = ["actions", "search"]


def __getattr__(name: str) -> object:
    # Loaded when it is asked for: the trusted side imports this package, too, and never searches.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module(f"cellblock.tools.calling.{name}")
