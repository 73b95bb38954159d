"""What processes cost: their tree, and their share of memory."""

from __future__ import annotations

import os
from pathlib import Path


def children(pid: int) -> list[int]:
    """Return the direct children of a process, oldest first."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (thread / "children").read_text().split())
    return sorted(found, key=_started)


def below(pid: int) -> list[int]:
    """Return every process below one."""
    found: list[int] = []
    for child in children(pid):
        found += [child, *below(child)]
    return found


def pss(pids: list[int]) -> float:
    """Return the proportional set size of some processes together, in MB of 10⁶ bytes."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total * 1024 / 1e6


def own() -> int:
    """Return this process."""
    return os.getpid()


def _started(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
