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


async def durability(_: System, *, n: int, undos: int) -> Series:
    """What it costs that nothing is lost when the power fails: cells of a session, and then of a durable one.

    Also undoing a cell that has written files, which are on the disk before the answer.

    Args:
        n: Cells in each session.
        undos: How many cells to undo, for each number of files.
    """
    import cellblock
    from cellblock.fronts.functions.connection import call
    from cellblock.operations.sessions import End

    state, workspace = tempfile.mkdtemp(), tempfile.mkdtemp()
    os.environ["CELLBLOCK_HOME"] = state
    os.chdir(workspace)
    try:
        cellblock.get_or_create("plain", recovery="exact")
        cellblock.get_or_create("durable", recovery="exact", durable=True)
        series: Series = {}
        for kind in ("plain", "durable"):
            series[kind] = _executions(cellblock, kind, n)
        for files in (1, 50):
            times = series[f"undo, {files} files"] = []
            for number in range(undos):
                for text in (f"before {number}", f"after {number}"):
                    write = f"for i in range({files}): open(f'file-{{i}}', 'w').write('{text}' * 1000)"
                    if not (result := cellblock.execute("plain", write)).ok or result.not_undoable:
                        raise ValueError(f"the cell failed, or cannot be undone: {result}")
                began = time.perf_counter()
                cellblock.undo("plain")
                times.append(ms(began))
        return series
    finally:
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
