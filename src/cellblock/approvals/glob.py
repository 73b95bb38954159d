"""Patterns with ``*``, ``**`` and ``?``, matched in time that grows with the text alone.

Regular expressions are not used: what is matched comes from untrusted code, which would find the text that keeps them busy.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Self


class Glob:
    """A compiled pattern: a non-deterministic automaton whose states are the bits of an integer."""

    def __init__(self, pattern: str, *, paths: bool) -> None:
        """Compile a pattern.

        Args:
            pattern: ``?`` is one character, ``*`` and ``**`` are any number of them. There is no way to escape these three.
            paths: Whether ``?`` and ``*`` stop at a ``/``.
        """
        parts = [part[:2] if part[0] == "*" else part for part in re.findall(r"\*+|[^*]", pattern, re.DOTALL)]
        self._letters: dict[str, int] = {}
        self._single = self._star = self._globstar = 0
        for place, part in enumerate(parts):
            bit = 1 << place
            if part == "**" or (part == "*" and not paths):
                self._globstar |= bit
            elif part == "*":
                self._star |= bit
            elif part == "?":
                self._single |= bit
            else:
                self._letters[part] = self._letters.get(part, 0) | bit
        self._stop = "/" if paths else ""
        self._end = 1 << len(parts)
        self._tail = self._end >> 1 if self._globstar & (self._end >> 1) else 0

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, pattern: str, *, paths: bool) -> Self:
        """Return the compiled pattern, compiled once."""
        return cls(pattern, paths=paths)

    def matches(self, text: str) -> bool:
        """Whether all of a text is as the pattern says."""
        loops = self._star | self._globstar
        state = 1 | (loops & 1) << 1
        for letter in text:
            if state & self._tail:
                return True  # whatever follows
            inside = letter != self._stop
            step = state & (self._letters.get(letter, 0) | (self._single if inside else 0))
            state = step << 1 | state & (loops if inside else self._globstar)
            state |= (state & loops) << 1
            if not state:
                return False
        return bool(state & self._end)
