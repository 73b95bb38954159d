"""Limits the automatic checkpoints of all sessions of a host."""

from __future__ import annotations

import time
import weakref
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint

_APART = 0.02
"""Minimum seconds between the starts of two automatic checkpoints of a host."""

_MAX_KEPT = 500
"""Earlier automatic checkpoints of all sessions of a host: 1 to 2 MB each."""


class Budget:
    """The limits on automatic checkpoints of all sessions of a host.

    At most 50 idle checkpoints per second. A copy takes as much CPU time as several small cells, and the next cell copies the
    pages that it writes to. Without the limit, many sessions with short pauses would spend more time on copies than on cells.

    At most 500 checkpoints at a time that are not the last of their session.
    """

    def __init__(self) -> None:
        self._next = 0.0
        self._kept: deque[weakref.ref[Checkpoint]] = deque()  # a strong reference would keep its session's whole history alive

    def ask(self) -> float:
        """Return the seconds to wait before the next checkpoint; 0 to create it now."""
        now = time.monotonic()
        if now < self._next:
            return self._next - now
        self._next = now + _APART
        return 0.0

    def spend(self, checkpoint: Checkpoint) -> None:
        """Count a checkpoint that is no longer its session's last one. Drop the oldest above the limit."""
        self._kept.append(weakref.ref(checkpoint))
        if len(self._kept) > _MAX_KEPT:
            self._kept = deque(kept for kept in self._kept if (one := kept()) is not None and one.alive)
        while len(self._kept) > _MAX_KEPT:
            if (oldest := self._kept.popleft()()) is not None:
                oldest.discard()
