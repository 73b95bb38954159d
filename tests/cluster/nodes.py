"""What tests know of the nodes that they run on, and do to them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cellblock.cluster import ClusterOptions, RayHosts

LEASE = 10.0
"""Seconds; less than the default, so that tests need not wait for so long."""

OPTIONS = ClusterOptions(memory=4 << 30, session_memory=16 << 20, lease=LEASE, cpus=0.5)


@dataclass
class Nodes:
    """The Ray cluster of the tests.

    Attributes:
        address: Ray's address.
        home: The directory of the state of whoever has started it.
    """

    address: str
    home: Path


async def ready_hosts(nodes: Nodes) -> RayHosts:
    """Return sessions on the nodes, with a host on each."""
    hosts = RayHosts(nodes.address, patience=30, options=OPTIONS)
    await hosts.start()
    await hosts.link.director.asked("status_soon", 60.0)
    return hosts


async def until(what: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait until something is so, and return it; asynchronous functions are awaited."""
    deadline = time.monotonic() + seconds
    while True:
        found = what()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, "it did not become so"
        await asyncio.sleep(0.02)


async def ready(hosts: RayHosts, count: int) -> list[dict[str, Any]]:
    """Wait until so many hosts are ready, and return them."""

    async def found() -> list[dict[str, Any]] | None:
        status = await hosts.status()
        up = [node for node in status["nodes"] if node["state"] == "ready"]
        return up if len(up) == count else None

    answer: list[dict[str, Any]] = await until(found, 60.0)
    return answer


async def node_of(hosts: RayHosts, session: str) -> dict[str, Any]:
    """Return the node that has a session, by its id."""
    return next(node for node in (await hosts.status())["nodes"] if session.endswith(node["mark"]))


def daemon_of(node: dict[str, Any]) -> int:
    """Return the daemon of a node."""
    below = Path(f"/proc/{node['processes']['node']}/task/{node['processes']['node']}/children").read_text().split()
    return next(int(pid) for pid in below if b"cellblock.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes())


def parent(pid: int) -> int:
    """Return the parent of a process: of an actor, the raylet."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def naming(text: str) -> list[int]:
    """Return the processes whose command line or environment names something, such as a node's directory."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with suppress(OSError):
                if text.encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                    found.append(int(entry))
    return found


def below(pid: int) -> set[int]:
    """Return all processes below one, and itself."""
    found, todo = {pid}, [pid]
    while todo:
        with suppress(OSError):
            here = todo.pop()
            for task in os.listdir(f"/proc/{here}/task"):
                for child in Path(f"/proc/{here}/task/{task}/children").read_text().split():
                    found.add(int(child))
                    todo.append(int(child))
    return found


def alive(pids: set[int]) -> set[int]:
    """Return which of some processes have not ended."""
    left = set()
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                left.add(pid)
    return left


def kill(*pids: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to processes that there may be."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
