"""MCP tools. The rooms: `mcp` (reach a server), `serving` (take calls in), `apigen` (typed APIs), `calling` (call from code).

`from cellblock.tools import search` is what code in a session writes to find a tool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellblock.tools.calling import search

__all__ = ["search"]


def __getattr__(name: str) -> object:
    # Loaded when it is asked for: the trusted side imports this package, too, and never searches.
    if name != "search":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module("cellblock.tools.calling.search")
