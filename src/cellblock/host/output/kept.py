"""The last results of a session, within limits."""

from __future__ import annotations

import sys
from collections import deque

from cellblock.model import CodeExecutionResult, KeptResult

_OVERHEAD = 1000  # memory of a result in addition to its text and values


class KeptResults:
    """The last results of a session."""

    def __init__(self, limit: int) -> None:
        """Start without results.

        Args:
            limit: Memory limit of all results, in bytes.
        """
        self._room = limit
        self._kept: deque[tuple[KeptResult, int]] = deque()

    def keep(self, result: CodeExecutionResult) -> KeptResult:
        """Store a result, and drop the oldest ones to make room."""
        kept, size = KeptResult(result), _size(result)
        self._kept.append((kept, size))
        self._room -= size
        while self._room < 0:
            oldest, size = self._kept.popleft()
            oldest.result = None
            self._room += size
        return kept


def _size(result: CodeExecutionResult) -> int:
    size = _OVERHEAD + sum(map(sys.getsizeof, (result.text, result.output, result.stderr)))
    for item in result.outputs:
        size += _OVERHEAD + sum(map(sys.getsizeof, (item.text, *item.data.values())))
    return size
