"""MCP tools: `mcp` (servers), `serving` (incoming calls), `apigen` (typed APIs), `calling` (calls from code).

Code in a session imports `search` from here to find tools, and `actions` to save them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellblock.tools.calling import actions, search

__all__ = ["actions", "search"]


def __getattr__(name: str) -> object:
    # Loaded on use: the trusted side imports this package, too, and never searches.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module(f"cellblock.tools.calling.{name}")
