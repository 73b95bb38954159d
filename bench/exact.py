"""What exact undo costs: `x = 1` in sessions that can undo each cell, some cells, or none, in workspaces of several sizes."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench import memory
from bench.cases import SETTLE, Series, ms
from bench.snapshots import fill
from bench.systems import System
from cellblock import Host, Session

_KINDS = ("exact", "rolling", "none")


async def cells(
    _: System, *, n: int, isolate: Any, files: int, waits: Sequence[int], large: int = 0, kinds: Sequence[str] = _KINDS
) -> Series:
    """`x = 1`, by a client that waits between two cells, in one session of each kind, in turns.

    Beside the times: page faults and processor time of a cell, of all processes together. Waits of the client are not in the
    times. A client that waits for 10 ms runs half as many cells, and one that waits for 100 ms a tenth.

    Args:
        n: Cells of a client that does not wait.
        isolate: What the kernels run in.
        files: How many files the workspace has.
        waits: How long the client waits, in milliseconds.
        large: How large one file more is, in MB; it is not written to.
        kinds: Values of `recovery`.
    """
    series: Series = {}
    with _workspaces(len(kinds), files, large) as workspaces:
        async with Host(isolate=isolate) as host, AsyncExitStack() as stack:
            sessions: dict[str, Session] = {}
            for kind, workspace in zip(kinds, workspaces, strict=True):
                option: Any = kind
                sessions[kind] = await stack.enter_async_context(host.session(working_dir=workspace, recovery=option))
            for session in sessions.values():
                await _run(session, 20, 0)
                await asyncio.sleep(SETTLE)
            for wait in waits:
                count = max(n // {0: 1, 1: 1, 10: 2}.get(wait, 10), 3)
                for kind, session in sessions.items():
                    before = memory.spent(memory.own())
                    series[f"{kind}, {wait} ms"] = await _run(session, count, wait / 1000)
                    await asyncio.sleep(SETTLE)  # what it costs after the last cell
                    faults, seconds = (
                        after - earlier for after, earlier in zip(memory.spent(memory.own()), before, strict=True)
                    )
                    series[f"{kind}, {wait} ms: faults"] = [faults / count]
                    series[f"{kind}, {wait} ms: CPU"] = [seconds * 1000 / count]
    for wait in waits:
        medians = {kind: statistics.median(series[f"{kind}, {wait} ms"]) for kind in kinds}
        for kind in {*kinds} - {"none"}:
            series[f"{kind}, {wait} ms: more"] = [medians[kind] - medians["none"]]
    return series


async def _run(session: Session, count: int, wait: float) -> list[float]:
    times: list[float] = []
    for _number in range(count):
        if wait:
            await asyncio.sleep(wait)
        began = time.perf_counter()
        result = await session.execute("x = 1")
        times.append(ms(began))
        if not result.ok or result.not_undoable:
            raise ValueError(f"the cell failed, or cannot be undone: {result}")
    return times


@contextmanager
def _workspaces(count: int, files: int, large: int) -> Iterator[list[Path]]:
    with tempfile.TemporaryDirectory() as directory:
        made = [Path(directory) / str(number) for number in range(count)]
        for workspace in made:
            workspace.mkdir()
            fill(workspace, files)
            if large:
                with (workspace / "large").open("wb") as file:
                    file.truncate(large * 1_000_000)
        yield made
