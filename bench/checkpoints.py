"""Checkpoints, branches and recovery, of kernels that hold next to nothing and of kernels that hold large arrays."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from bench import memory
from bench.cases import SETTLE, Series, ms
from bench.systems import System
from cellblock import CodeExecutionResult, Host, Rolling, Session

_FILL = "import numpy\narrays = [numpy.ones({size} * 100_000 // 8) for _ in range(10)]\n"
_HELD = {
    "0 MB": "",
    "100 MB": _FILL.format(size=100),
    "1000 MB": _FILL.format(size=1000),
    "10 M objects": "objects = [float(number) for number in range(10**7)]\n",
}
"""What a session holds: arrays of a size, or small objects → the code that creates them."""
_FORK = """
import os, time
import IPython
for _ in range({n}):
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    print((time.perf_counter() - began) * 1000)
"""
_QUICK = Rolling(after=0.001)
_PAUSE = 0.06


async def restore(_: System, *, n: int, isolate: str, held: Sequence[str]) -> Series:
    """A checkpoint, and a way back to it up to the result of the next cell, with arrays or small objects.

    Beside it: a bare fork of a process with the same memory, its exit, and the wait for it.
    """
    series: Series = {}
    async with _opened(isolate) as host:
        for name in held:
            fill = _HELD[name]
            made, back = series.setdefault(f"checkpoint, {name}", []), series.setdefault(f"restore, {name}", [])
            async with host.session(recovery="none") as session:
                await run(session, fill)
                for number in range(n):
                    await run(session, f"x = {number}")
                    began = time.perf_counter()
                    checkpoint = await session.checkpoint()
                    made.append(ms(began))
                    await run(session, "x = None")
                    began = time.perf_counter()
                    await session.restore(checkpoint)
                    await run(session, "x", str(number))
                    back.append(ms(began))
                    await checkpoint.drop()
            series[f"fork, {name}"] = _forks(fill, n)
    return series


def _forks(fill: str, n: int) -> list[float]:
    code = fill + _FORK.format(n=n)
    return [float(line) for line in subprocess.check_output([sys.executable, "-c", code], text=True).split()]


async def undo(_: System, *, n: int, isolate: str) -> Series:
    """Undoing a cell, and recovering from the kernel's death in a cell: each up to the result of the next cell."""
    series: Series = {"undo": [], "recovery": []}
    async with _opened(isolate) as host, host.session(recovery=_QUICK) as session:
        for number in range(n):
            await run(session, f"x = {number}")
            await _rolled(session)
            await run(session, "x = None")
            began = time.perf_counter()
            await session.undo()
            await run(session, "x", str(number))
            series["undo"].append(ms(began))
            await _rolled(session)
            began = time.perf_counter()
            died = await session.execute("import os; os.kill(os.getpid(), 9)")
            await run(session, "x", str(number))
            series["recovery"].append(ms(began))
            if died.ok or died.state_lost:
                raise ValueError(f"the session did not recover: {died}")
    return series


async def fork(_: System, *, n: int, isolate: str, branches: int) -> Series:
    """Branches of a session, up to the answer of each."""
    times: list[float] = []
    async with _opened(isolate) as host, host.session(recovery="none") as session:
        await run(session, "x = 1")
        for _number in range(n):
            began = time.perf_counter()
            made = await session.fork(branches)
            await asyncio.gather(*(run(branch, "x", "1") for branch in made))
            times.append(ms(began))
            await asyncio.gather(*(branch.close() for branch in made))
    return {"ms": times}


async def rolling(_: System, *, n: int, pauses: int, isolate: str, turns: int) -> Series:
    """Cells in a session with rolling checkpoints and in one without, in turns.

    Cells that follow each other at once, between which no checkpoint is made, and cells with a pause before each.
    """
    series: Series = {}
    async with _opened(isolate) as host, host.session(recovery="rolling") as one, host.session(recovery="none") as other:
        sessions = {"rolling": one, "none": other}
        for session in sessions.values():
            await trips(session, 20, 0)
        for _turn in range(turns):
            for name, session in sessions.items():
                series.setdefault(f"{name}, at once", []).extend(await trips(session, n, 0))
        for _turn in range(turns):
            for name, session in sessions.items():
                series.setdefault(f"{name}, with pauses", []).extend(await trips(session, pauses, _PAUSE))
        if not one.checkpoints():
            raise ValueError(f"no checkpoint was made in the pauses: {one.checkpoint_refused}")
    for way in ("at once", "with pauses"):
        on, off = (statistics.median(series[f"{name}, {way}"]) for name in sessions)
        series[f"more, {way}, %"] = [(on / off - 1) * 100]
    return series


async def parked(_: System, *, n: int, isolate: str) -> Series:
    """What one more checkpoint adds to the memory of all processes, if nothing has changed since the one before."""
    added: list[float] = []
    async with _opened(isolate) as host, host.session(recovery="none") as session:
        await run(session, "x = 1")
        checkpoints = [await session.checkpoint()]  # the first one also costs what the session has to have for it
        for _number in range(n):
            before = await _weigh()
            checkpoints.append(await session.checkpoint())
            added.append(await _weigh() - before)
        for checkpoint in checkpoints:
            await checkpoint.drop()
    return {"MB": added}


async def _weigh() -> float:
    await asyncio.sleep(SETTLE)
    return memory.pss([memory.own(), *memory.below(memory.own())])


@asynccontextmanager
async def _opened(isolate: Any) -> AsyncIterator[Host]:
    """Open a host that has made a kernel already."""
    async with Host(isolate=isolate) as host:
        async with host.session() as session:
            await run(session, "pass")
        await asyncio.sleep(SETTLE)
        yield host


async def run(session: Session, code: str, value: str | None = None) -> CodeExecutionResult:
    """Run a cell that must have this value.

    Raises:
        ValueError: It failed, or has another value.
    """
    result = await session.execute(code)
    if not result.ok or result.return_value != value:
        raise ValueError(f"{code!r} should be {value}: {result}")
    return result


async def trips(session: Session, n: int, pause: float) -> list[float]:
    """Run `x = 1` a number of times, with a pause before each; return what each took, without the pause.

    Raises:
        ValueError: A cell failed, or cannot be undone.
    """
    times: list[float] = []
    for _number in range(n):
        if pause:
            await asyncio.sleep(pause)
        began = time.perf_counter()
        result = await session.execute("x = 1")
        times.append(ms(began))
        if not result.ok or result.not_undoable:
            raise ValueError(f"the cell failed, or cannot be undone: {result}")
    return times


async def _rolled(session: Session) -> None:
    """Wait until the last cell has its checkpoint."""
    deadline = time.monotonic() + 10
    while not any(checkpoint.execution_count == session.next_count - 1 for checkpoint in session.checkpoints()[-1:]):
        if time.monotonic() > deadline:
            raise ValueError(f"no checkpoint is made: {session.checkpoint_refused}")
        await asyncio.sleep(0.001)
