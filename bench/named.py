"""Named sessions through the four functions that cellblock and KernelBox have in common."""

from __future__ import annotations

import os
import tempfile
import time
from importlib import import_module
from typing import Any

from bench.cases import Series, ms
from bench.systems import System


async def functions(system: System, *, n: int, sessions: int) -> Series:
    """Executions of a cell that does next to nothing, and new sessions, one after the other."""
    state, workspace = tempfile.mkdtemp(), tempfile.mkdtemp()
    os.environ["CELLBLOCK_HOME"] = state
    os.chdir(workspace)
    api: Any = import_module(system.module)
    options = {"recovery": "rolling"} if system.module == "cellblock" else {}
    try:
        kernel = api.get_or_create("bench", **options)
        return {"execute": _executions(api, kernel, n), "get_or_create": _sessions(api, sessions)}
    finally:
        api.destroy("bench")
        if system.module == "cellblock":
            from cellblock.fronts.functions.connection import call
            from cellblock.operations.sessions import End

            call(End())


def _executions(api: Any, kernel: Any, n: int) -> list[float]:
    times: list[float] = []
    for number in range(n + 20):
        began = time.perf_counter()
        result = api.execute(kernel, "x = 1")
        if number >= 20:
            times.append(ms(began))
        if not result.ok:
            raise ValueError(f"{api.__name__} failed: {result}")
    return times


def _sessions(api: Any, n: int) -> list[float]:
    times: list[float] = []
    for number in range(n):
        began = time.perf_counter()
        api.get_or_create(f"bench-{number}")
        times.append(ms(began))
        api.destroy(f"bench-{number}")
    return times
