"""System V shared memory, message queues and semaphores, which belong to no process and persist when unused."""

from __future__ import annotations

_OF_MESSAGE = 64  # kernel memory for each, even for an empty one


def held() -> int:
    """Return the bytes in the segments and queues of this IPC namespace. Pages of an attached segment count twice."""
    return sum(rss + swap for rss, swap in _table("shm", "rss", "swap")) + sum(
        size + number * _OF_MESSAGE for size, number in _table("msg", "cbytes", "qnum")
    )


def sets_of_semaphores() -> int:
    """Return the number of semaphore sets in this IPC namespace. Their values can change when a process ends (SEM_UNDO)."""
    return len(_table("sem", "semid"))


def _table(name: str, *columns: str) -> list[tuple[int, ...]]:
    """Return some columns of one of the kernel's tables; empty if the kernel lacks it."""
    try:
        with open(f"/proc/sysvipc/{name}", "rb") as file:
            heads = file.readline().decode().split()
            places = [heads.index(column) for column in columns]
            return [tuple(int(row[place]) for place in places) for row in map(bytes.split, file)]
    except (OSError, ValueError):
        return []
