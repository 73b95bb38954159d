"""Returns free memory to the system: the C library keeps freed memory, which may never be needed again."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import time
from collections.abc import Callable

_MUCH = 8 * 1024 * 1024
"""Bytes by which a process has to grow before it looks for memory to give back."""

_CLOSING = 3.0
"""Seconds after which an ended session is closed and nothing refers to it."""

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """The memory of this process."""

    def __init__(self) -> None:
        self._trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        self._known = resident()
        self._sessions = 0
        self._due = math.inf

    def look(self, sessions: int, *, busy: bool) -> bool:
        """Return free memory if nothing runs and this process has grown, or if sessions have ended.

        Args:
            sessions: The number of sessions.
            busy: Whether code runs or a session is being ended. Then wait: trimming takes milliseconds, and more memory
                will be needed.

        Returns:
            Whether memory was trimmed.
        """
        now = time.monotonic()
        if sessions < self._sessions:
            self._due = min(self._due, now + _CLOSING)
        self._sessions = sessions
        ended = now >= self._due
        if busy or self._trim is None or not (ended or resident() > self._known + _MUCH):
            return False
        if ended:
            gc.collect()  # a session's objects form a cycle
            self._due = math.inf
        self._trim(0)
        self._known = resident()
        return True


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0
