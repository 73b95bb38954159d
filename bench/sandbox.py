"""What a sandbox costs: cellblock's kernels in one and without, in turns in one process.

In turns of some kernels or cells, not of one: what the zygote does after a kernel is to hit the next of its own kind.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from bench.cases import PLOT_STACK, SETTLE, Series, created, ms, round_trips
from bench.systems import Kernel, System


async def create(system: System, *, n: int, turns: int, preload: bool = False, isolate: str = "native") -> Series:
    """A new kernel, to the result of its first cell."""
    await system.open(PLOT_STACK if preload else ())

    async def times(way: str) -> list[float]:
        made = await created(system, n, preload=preload, isolate=way)
        if made["right"] != [1.0]:
            raise ValueError(f"kernels with isolate={way!r} answer wrongly")
        return made["ms"]

    series = await _in_turns(times, turns, ("none", isolate))
    await system.close()
    return series


async def roundtrip(system: System, *, n: int, turns: int) -> Series:
    """One cell that does next to nothing."""
    await system.open()
    ways = ("none", "native")
    kernels: dict[str, Kernel] = {isolate: await system.kernel(isolate) for isolate in ways}
    series = await _in_turns(lambda isolate: round_trips(kernels[isolate], n), turns, ways)
    for kernel in kernels.values():
        await kernel.close()
    await system.close()
    return series


async def _in_turns(measured: Callable[[str], Awaitable[list[float]]], turns: int, ways: tuple[str, str]) -> Series:
    series: Series = {isolate: [] for isolate in ways}
    for _ in range(turns):
        for isolate in ways:
            series[isolate] += await measured(isolate)
    plain, sandboxed = (statistics.median(series[isolate]) for isolate in ways)
    return {**series, "more, ms": [sandboxed - plain], "more, %": [(sandboxed / plain - 1) * 100]}


async def srt(system: System, *, n: int, firsts: int) -> Series:
    """Kernels under srt: the first one of a sandbox, which starts it, and those that follow in the same."""
    series: Series = {"first": [], "next": []}
    for _ in range(firsts):
        await system.open()
        began = time.perf_counter()
        kernel = await system.kernel("srt")
        await kernel.execute("print(6 * 7)")
        series["first"].append(ms(began))
        await kernel.close()
        await asyncio.sleep(SETTLE)
        series["next"] += (await created(system, n, preload=False, isolate="srt"))["ms"]
        await system.close()
    return series
