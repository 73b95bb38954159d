"""Patterns with ``*``, ``**`` and ``?``, matched in linear time.

Regular expressions are not used, because untrusted text could make them backtrack exponentially.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Self

from cellblock.errors import InvalidInputError

MAX_PATTERN = 4096
"""Maximum characters of a pattern: each costs a pass over the text, at 64 positions a step."""


class Glob:
    """A compiled pattern.

    The text is matched one part of the pattern at a time. The bits of one integer are the positions at which the parts so
    far can end. A part therefore takes a few integer operations instead of a step for each character.
    """

    def __init__(self, pattern: str, *, paths: bool) -> None:
        """Compile a pattern.

        Args:
            pattern: ``?`` matches one character; ``*`` and ``**`` match any number. These three cannot be escaped.
            paths: Whether ``?`` and ``*`` stop at a ``/``.

        Raises:
            InvalidInputError: The pattern is longer than `MAX_PATTERN`.
        """
        if len(pattern) > MAX_PATTERN:
            raise InvalidInputError(f"A pattern may have {MAX_PATTERN} characters; {pattern[:40]!r}… has {len(pattern)}.")
        found = re.findall(r"\*+|\?|[^*?]+", pattern)
        wild = "*" if paths else "**"
        self._parts = [(wild if part == "*" else part[:2]) if part[0] in "*?" else _encode(part) for part in found]
        self._paths = paths

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, pattern: str, *, paths: bool) -> Self:
        """Return the compiled pattern, from a cache."""
        return cls(pattern, paths=paths)

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        data, parts = _encode(text), self._parts
        if not parts:
            return not data
        # The start and the end decide most patterns.
        first, last = parts[0], parts[-1]
        if isinstance(first, bytes) and not data.startswith(first):
            return False
        if isinstance(last, bytes) and not data.endswith(last):
            return False
        text_bits = _Text(data, self._paths)
        state = 1
        for part in parts:
            state = text_bits.after(state, part)
            if not state:
                return False
        return bool(state >> len(data) & 1)


class _Text:
    """A text as sets of positions. Bit ``n`` of a set is the position before byte ``n`` of the UTF-8."""

    def __init__(self, data: bytes, paths: bool) -> None:
        self._backwards = data[::-1]
        self._all = (2 << len(data)) - 1
        self._sets: dict[int, int] = {}
        self._inside = self._all >> 1  # where ``*`` and ``?`` may continue
        if paths:
            self._inside &= ~self._where(0x2F)
        self._middle = 0 if data.isascii() else self._where(*range(0x80, 0xC0))  # of characters with several bytes

    def after(self, state: int, part: bytes | str) -> int:
        """Return the positions at which a part of a pattern can end if it starts at some positions."""
        if isinstance(part, bytes):
            for byte in part:
                state = (state & self._where(byte)) << 1
            return state
        if part == "**":
            return self._all & -(state & -state)  # every position from the first one on
        if part == "?":
            state = (state & self._inside) << 1
            for _ in range(3):
                state = state & ~self._middle | (state & self._middle) << 1
            return state
        # ``*``: a carry runs from each position to the end of the run of ones in `inside` around it.
        return state | (self._inside + (state & self._inside)) ^ self._inside

    def _where(self, *wanted: int) -> int:
        """Return the positions of some bytes."""
        key = wanted[0]
        if key not in self._sets:
            table = bytearray(b"0" * 256)
            for byte in wanted:
                table[byte] = 0x31
            self._sets[key] = int(self._backwards.translate(table) or b"0", 2)
        return self._sets[key]


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
