"""Compares the paths and hosts in two policies, in time linear in both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_END = None  # marks a node where a name ends


class _Names:
    """A trie of names by their parts, first to last."""

    def __init__(self) -> None:
        self._root: dict[Any, Any] = {}

    def add(self, parts: list[str]) -> None:
        node = self._root
        for part in parts:
            node = node.setdefault(part, {})
        node[_END] = True

    def begin(self, parts: list[str], *, strictly: bool) -> bool:
        """Return whether a name in the trie is a prefix of another; ``strictly``: a proper prefix."""
        node = self._root
        for part in parts:
            if _END in node:
                return True
            if part not in node:
                return False
            node = node[part]
        return _END in node and not strictly


class Paths:
    """Allowed paths."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self._exactly = frozenset(allowed)
        self._inside = _Names()
        for path in self._exactly:
            self._inside.add(path.rstrip("/").split("/"))

    def cover(self, path: str) -> bool:
        """Return whether they include another path."""
        if path in self._exactly:
            return True
        parts = path.split("/")
        if ".." in parts:
            return False  # its target is unknown here
        if not path.startswith("~") and ("/" in self._exactly or ("." in self._exactly and path[0] != "/")):
            return True
        return self._inside.begin(parts, strictly=True)


class Hosts:
    """Allowed host patterns."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self._exactly = frozenset(allowed)
        self._below = _Names()
        for pattern in self._exactly:
            if pattern.startswith("*."):
                self._below.add(pattern.split(".")[:0:-1])

    def cover(self, pattern: str) -> bool:
        """Return whether they include another pattern."""
        if pattern in self._exactly:
            return True
        return "*" not in pattern and self._below.begin(pattern.split(".")[::-1], strictly=True)


class Denials:
    """Denied paths."""

    def __init__(self, denied: Iterable[str]) -> None:
        self._unknown = False  # whether the target of one of them is unknown
        self._starts: dict[str, _Names] = {}
        for path in denied:
            self._unknown = self._unknown or ".." in path.split("/")
            self._starts.setdefault(_start(path), _Names()).add(_parts(path))

    def may_hold(self, path: str) -> bool:
        """Return whether a path may be inside one of them.

        With different starts, they cannot be compared without a workspace.
        """
        if not self._starts:
            return False
        start = _start(path)
        if self._unknown or ".." in path.split("/") or self._starts.keys() != {start}:
            return True
        return self._starts[start].begin(_parts(path), strictly=False)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _start(path: str) -> str:
    return path[0] if path[:1] in ("/", "~") else ""
