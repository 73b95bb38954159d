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

import math
import os
import re
from collections import Counter
from pathlib import Path

from cellblock.tools.calling.catalog import Tool, source, tools
from cellblock.tools.calling.interface import interface_of

__all__ = ["interface", "names", "signatures", "source", "tools"]

# Okapi BM25 with its usual constants; a word in a name weighs more than one in a description.
_SATURATION, _LENGTH, _NAME_WEIGHT = 1.2, 0.75, 3

_LEAST = 0.4
"""The share of the best tool's score that others need to be named."""

_COMMON = frozenset(
    re.findall(r"\w+", "a all an and any are at be by for from how i in into is it me my of on or that the this to what with")
)
"""Words that say nothing about a tool."""


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
    ranked = sorted(zip(_scores(known, words), known, strict=True), key=lambda pair: (-pair[0], pair[1].path))
    least = max((_LEAST * score for score, _ in ranked[:1]), default=0.0)
    return [tool.path for score, tool in ranked if score > 0 and score >= least][:limit]


def signatures(*paths: str, root_dir: str | os.PathLike[str] = "mcptools") -> list[str]:
    """Return the signatures of tools, with a summary, one per line.

    Args:
        paths: Tools as ``server.module``, or servers, for all of their tools; nothing: all tools.
        root_dir: The directory passed to `cellblock.generate_mcp_sources`.

    Returns:
        A line for each existing tool.
    """
    chosen = [tool for tool in tools(root_dir) if not paths or tool.path in paths or tool.server in paths]
    return [f"{tool.server}.{tool.signature}" + (f"  # {tool.summary}" if tool.summary else "") for tool in chosen]


def interface(path: str, root_dir: str | os.PathLike[str] = "mcptools") -> str:
    """Return a tool's interface for a model: parameters, results and their meaning.

    It is `source` without imports and bodies of functions. Long enumerations and long interfaces are shortened, with a
    note.

    Args:
        path: The tool, as ``server.module``.
        root_dir: The directory passed to `cellblock.generate_mcp_sources`.
    """
    return interface_of(source(path, root_dir=root_dir), f"{Path(root_dir).name}/{path.replace('.', '/')}.py")


def _scores(known: list[Tool], words: str) -> list[float]:
    documents = [_weights(tool) for tool in known]
    lengths = [sum(document.values()) for document in documents]
    mean = sum(lengths) / len(lengths) if lengths else 1.0
    scores = [0.0] * len(known)
    for word in sorted({*_words(words)} - _COMMON):
        # A word also matches words that begin with it, with a lower score: `list` matches `listing`.
        counts = [max(document[word], 0.5 * _beginning(document, word)) for document in documents]
        found = sum(1 for count in counts if count)
        rarity = math.log(1 + (len(known) - found + 0.5) / (found + 0.5))
        for index, count in enumerate(counts):
            if count:
                norm = _SATURATION * (1 - _LENGTH + _LENGTH * lengths[index] / mean)
                scores[index] += rarity * count * (_SATURATION + 1) / (count + norm)
    return scores


def _weights(tool: Tool) -> Counter[str]:
    weights = Counter(_words(f"{tool.server} {tool.description}"))
    for word in _words(tool.name):
        weights[word] += _NAME_WEIGHT
    return weights


def _beginning(document: Counter[str], word: str) -> int:
    return max((count for other, count in document.items() if len(word) > 2 and other.startswith(word)), default=0)


def _words(text: str) -> list[str]:
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)  # getUser
    return [_stem(word) for word in re.findall(r"[^\W_]+", split.lower())]


def _stem(word: str) -> str:
    """Return a word without its plural ending."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
