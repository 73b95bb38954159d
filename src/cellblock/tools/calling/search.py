"""Finds tools by words: first names, then signatures, then the module of one tool.

    >>> from cellblock.tools import search
    >>> search.names("list files")
    ['filesystem.list_directory', …]
    >>> search.signatures("filesystem.list_directory")
    ['filesystem.list_directory(path: str) -> Result  # Get a detailed listing …']
    >>> print(search.source("filesystem.list_directory"))

It works inside a session and outside, with the standard library alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cellblock.tools.calling.catalog import Tool, source, tools
from cellblock.tools.calling.interface import interface_of
from cellblock.tools.calling.ranking import corrected, corrections, rank

__all__ = ["interface", "names", "signatures", "source", "tools"]

_LEAST = 0.4
"""The share of the best tool's score that others need to be named."""


def names(words: str = "", root_dir: str | os.PathLike[str] = "mcptools", limit: int = 20) -> list[str]:
    """Return the tools that match words.

    Args:
        words: The words, in any order; empty: all tools.
        root_dir: The directory passed to `cellblock.generate_mcp_sources`.
        limit: Maximum number of tools to return for words.

    Returns:
        Tools as ``server.module``, best match first; without words, in the order of the catalogue.
    """
    known = tools(root_dir)
    if not words.strip():
        return [tool.path for tool in known]
    return [tool.path for tool in matching(known, words)[0]][:limit]


def matching(known: Sequence[Tool], words: str) -> tuple[list[Tool], dict[str, str]]:
    """Return the tools that match words, best match first, and corrected misspellings.

    Args:
        known: The tools, from any number of directories.
        words: The words.
    """
    spelling = corrections(known, words)
    ranked = sorted(
        zip(rank(known, corrected(words, spelling)), known, strict=True), key=lambda pair: (-pair[0], pair[1].path)
    )
    least = max((_LEAST * score for score, _ in ranked[:1]), default=0.0)
    return [tool for score, tool in ranked if score > 0 and score >= least], spelling


def line(tool: Tool) -> str:
    """Return the signature of a tool with its summary."""
    return f"{tool.server}.{tool.signature}" + (f"  # {tool.summary}" if tool.summary else "")


def signatures(*paths: str, root_dir: str | os.PathLike[str] = "mcptools") -> list[str]:
    """Return the signatures of tools, with a summary, one per line.

    Args:
        paths: Tools as ``server.module``, or servers, for all of their tools; nothing: all tools.
        root_dir: The directory passed to `cellblock.generate_mcp_sources`.

    Returns:
        A line for each existing tool.
    """
    chosen = [tool for tool in tools(root_dir) if not paths or tool.path in paths or tool.server in paths]
    return [line(tool) for tool in chosen]


def interface(path: str, root_dir: str | os.PathLike[str] = "mcptools") -> str:
    """Return a tool's interface for a model: parameters, results and their meaning.

    It is `source` without imports and bodies of functions. Long enumerations and long interfaces are shortened, with a
    note.

    Args:
        path: The tool, as ``server.module``.
        root_dir: The directory passed to `cellblock.generate_mcp_sources`.
    """
    return interface_of(source(path, root_dir=root_dir), f"{Path(root_dir).name}/{path.replace('.', '/')}.py")
