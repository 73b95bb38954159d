"""What is running below this process, and ways to wait for it to change: for tests that must see nothing left behind."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any


def parents() -> dict[int, int]:
    """Return the parent of every process that is not a zombie."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            found[int(entry.name)] = int(fields[1])
    return found


def below(pid: int) -> set[int]:
    """Return every living process below one."""
    return {*tree(pid)}


def tree(pid: int) -> dict[int, set[int]]:
    """Return every living process below one, with its children."""
    found: dict[int, set[int]] = {}
    todo = children(pid)
    while todo:
        child = todo.pop()
        more = children(child)
        todo |= more
        if more or alive(child):
            found[child] = more
    return found


def children(pid: int) -> set[int]:
    """Return the direct children of a process, dead ones that nobody has waited for included."""
    found: set[int] = set()
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb", 0) as file:
                found.update(map(int, file.read().split()))
        except OSError:  # it has ended: its children are another thread's now, or those of a process above
            continue
    return found


def _state(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/stat", "rb", 0) as file:
            return file.read().rpartition(b")")[2].split(maxsplit=1)[0]
    except OSError:
        return b""


def command_line(pid: int) -> str:
    """Return what a process was started with; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    return _state(pid) not in (b"Z", b"")


def asleep(pid: int) -> bool:
    """Whether a process waits for something."""
    return _state(pid) == b"S"


def descriptors() -> dict[int, str]:
    """Return this process's open descriptors and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


async def eventually(condition: Callable[[], object] | Callable[[], Awaitable[object]], timeout: float = 10.0) -> Any:
    """Wait until something is true, and return it. Fail if it does not become so in time."""
    deadline = time.monotonic() + timeout
    while True:
        outcome = condition()
        if isinstance(outcome, Awaitable):
            outcome = await outcome
        if outcome:
            return outcome
        if time.monotonic() > deadline:
            raise AssertionError(f"still not so after {timeout} s: {condition}")
        await asyncio.sleep(0.005)
