"""What was changed within some spans of time is brought back; what somebody else has changed stays."""

from __future__ import annotations

import time
from collections.abc import Callable

from cellblock.host.kernels.pairs import files_time


def changed_by(change: Callable[[], object]) -> tuple[int, int]:
    """Return the span of time in which a change was made, and nothing else."""
    began = later(time.time_ns())
    change()
    ended = time.time_ns()
    later(ended)
    return began, ended


def later(than: int) -> int:
    """Return a time after another one, once the clock has come to it: it goes in steps of some milliseconds."""
    while (now := files_time()) <= than:
        pass
    return now
