"""Waiting until this machine has nothing else to do, because what else it does would be measured too."""

from __future__ import annotations

import os
import time
from pathlib import Path

_LOOK = 0.3
_QUIET = 0.15


def wait(patience: float) -> bool:
    """Wait until the processors are idle but for a little.

    Args:
        patience: Seconds to wait at most.

    Returns:
        Whether they were.
    """
    deadline = time.monotonic() + patience
    while True:
        before = _busy()
        time.sleep(_LOOK)
        if (_busy() - before) / _LOOK < _QUIET * len(os.sched_getaffinity(0)):
            return True
        if time.monotonic() >= deadline:
            return False


def _busy() -> float:
    """Return the seconds that all processors together have worked."""
    user, nice, system, _idle, _waiting, irq, softirq, steal, *_ = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
