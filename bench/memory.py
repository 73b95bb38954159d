"""What processes cost: their tree, their share of memory, their page faults and processor time."""

from __future__ import annotations

import contextlib
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


def spent(pid: int) -> tuple[int, float]:
    """Return page faults and seconds of processor time, of a process and all below it, with those that have ended."""
    faults = ticks = 0
    for one in (pid, *below(pid)):
        with contextlib.suppress(FileNotFoundError):  # it has just ended, and its parent counts it
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            faults += sum(map(int, fields[7:11]))
            ticks += sum(map(int, fields[11:15]))
    return faults, ticks / os.sysconf("SC_CLK_TCK")


def own() -> int:
    """Return this process."""
    return os.getpid()


def _started(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
