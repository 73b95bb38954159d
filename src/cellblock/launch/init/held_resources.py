"""Checks whether a stopped worker can be left to end unobserved, because it has no effect on others until then.

Linux frees the memory of a process before it closes its descriptors. So for a millisecond or more after SIGKILL, its ports are
taken and its files locked. Two things are not found here: a file that it has locked, mapped and closed, because checking all
mappings would take as long as it saves; and a port whose socket replaced one of the worker's own.
"""

from __future__ import annotations

import os

from cellblock.launch.init import processes, system_v

_OWN = (*("/dev/null", "pipe:", "pipe:"), *("socket:",) * 4)
"""The targets of a worker's own descriptors, from 0 on; ports, open files and connections of its code make more, or others."""

_MOST = 128 * 2**20
"""Resident bytes that are usually freed in a few milliseconds, and may count twice until then"""


def holds_own_only(pid: int) -> bool:
    """Return whether a stopped worker holds nothing but its own connections, and little memory.

    Semaphores of System V belong to no process, but their values may change when one ends (SEM_UNDO).
    """
    name = processes.name_in_proc(pid)
    try:
        return processes.resident(name) <= _MOST and _has_own_descriptors_only(name) and not system_v.sets_of_semaphores()
    except OSError:
        return False


def _has_own_descriptors_only(name: int) -> bool:
    directory = f"/proc/{name}/fd"
    there = sorted(map(int, os.listdir(directory)))
    return there == [*range(len(_OWN))] and all(
        os.readlink(f"{directory}/{number}").startswith(kind) for number, kind in enumerate(_OWN)
    )
