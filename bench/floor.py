"""What this machine takes for the things that nobody who does this can do without."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from typing import Any


def floor(*, n: int) -> dict[str, list[float]]:
    """Measure, in milliseconds: a wake-up there and back, IPython alone, a fork, an interpreter."""
    return {
        "ping-pong": _ping_pong(n),
        "bare python": [_python() for _ in range(max(n // 50, 5))],
        "run_cell": _run_cell(n),
        "fork": [_fork() for _ in range(max(n // 20, 5))],
    }


def _ping_pong(n: int) -> list[float]:
    """One byte to another process and back, over a socket pair, both blocking."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        while data := theirs.recv(1):
            theirs.send(data)
        os._exit(0)
    theirs.close()
    times = []
    for _ in range(n):
        began = time.perf_counter()
        ours.send(b"x")
        ours.recv(1)
        times.append((time.perf_counter() - began) * 1000)
    ours.close()
    os.waitpid(pid, 0)
    return times


def _python() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return (time.perf_counter() - began) * 1000


def _run_cell(n: int) -> list[float]:
    """`x = 1` in IPython, in one process, with nothing around it."""
    from IPython.core.interactiveshell import InteractiveShell

    shell: Any = InteractiveShell.instance()
    shell.history_manager.enabled = False
    times = []

    async def cells() -> None:
        for _ in range(n):
            began = time.perf_counter()
            await shell.run_cell_async("x = 1", store_history=True, transformed_cell=shell.transform_cell("x = 1"))
            times.append((time.perf_counter() - began) * 1000)

    asyncio.run(cells())
    return times


def _fork() -> float:
    """A fork of this process, which has IPython loaded, that exits at once, and the wait for it."""
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return (time.perf_counter() - began) * 1000
