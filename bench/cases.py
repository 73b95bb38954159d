"""What is measured. Each case runs in a fresh process, for one system, and returns series of raw samples.

Times are in milliseconds, memory in MB (10⁶ bytes), throughput in MB/s.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

from bench import memory
from bench.systems import Kernel, System

Series = dict[str, list[float]]

PLOT_STACK = ("pandas", "matplotlib.pyplot")
SETTLE = 0.5  # seconds until nothing of a start still runs
_CHECKPOINT = 0.05  # seconds for the first checkpoint of each kernel: a host makes one after the other, with pauses


def ms(since: float) -> float:
    """Return the milliseconds since a time of `time.perf_counter`."""
    return (time.perf_counter() - since) * 1000


async def create(system: System, *, n: int, pause: float = 0.0, preload: bool = False) -> Series:
    """A new kernel, to the result of its first cell."""
    await system.open(PLOT_STACK if preload else ())
    series = await created(system, n, preload=preload, pause=pause)
    await system.close()
    return series


async def created(system: System, n: int, *, preload: bool, pause: float = 0.0, isolate: str = "none") -> Series:
    """Make kernels one after the other, in an open system."""
    code = f"import {', '.join(PLOT_STACK)}\nprint(6 * 7)" if preload else "print(6 * 7)"
    times: list[float] = []
    right = 0
    # The first one is not counted: it loads what this process needs itself.
    for number in range(n + 1):
        began = time.perf_counter()
        kernel = await system.kernel(isolate)
        text = await kernel.execute(code)
        if number:
            times.append(ms(began))
            right += text == "42"
        await kernel.close()
        if pause:
            await asyncio.sleep(pause)
    return {"ms": times, "right": [right / n]}


async def life(system: System, *, n: int, isolate: str) -> Series:
    """What a kernel costs all processes together, with one cell, up to its end, in page faults and processor time."""
    await system.open()
    await created(system, 3, preload=False, isolate=isolate)
    await asyncio.sleep(SETTLE)
    before = memory.spent(memory.own())
    await created(system, n - 1, preload=False, isolate=isolate)
    await asyncio.sleep(SETTLE)
    faults, seconds = (after - earlier for after, earlier in zip(memory.spent(memory.own()), before, strict=True))
    await system.close()
    return {"faults": [faults / n], "CPU": [1000 * seconds / n]}


async def roundtrip(system: System, *, n: int) -> Series:
    """One cell that does next to nothing."""
    await system.open()
    kernel = await system.kernel()
    times = await round_trips(kernel, n)
    await kernel.close()
    await system.close()
    return {"ms": times}


async def round_trips(kernel: Kernel, n: int) -> list[float]:
    """Run the same cell again and again; return what each took."""
    times: list[float] = []
    for number in range(n + 20):
        began = time.perf_counter()
        await kernel.execute("x = 1")
        if number >= 20:
            times.append(ms(began))
    return times


async def lost(system: System, *, n: int) -> Series:
    """Cells that print one line each: how many came back without it."""
    await system.open()
    kernel = await system.kernel()
    wrong = 0
    for number in range(n):
        wrong += await kernel.execute(f"print('line', {number})") != f"line {number}"
    await kernel.close()
    await system.close()
    return {"lost": [float(wrong)], "of": [float(n)]}


async def stream(system: System, *, size: int) -> Series:
    """One cell that prints a lot, taken as it comes."""
    await system.open()
    series: Series = {}
    for name, length in (("lines of 80", 80), ("lines of 1,000", 1000), ("writes of 1 MB", 1_000_000)):
        kernel = await system.kernel()
        await kernel.execute("import sys")
        code = f"for _ in range({size // length}): print('x' * {length - 1})"
        if length == 1_000_000:
            code = f"for _ in range({size // length}): _ = sys.stdout.write('x' * {length})"
        began = time.perf_counter()
        came = await kernel.stream(code)
        series[name] = [came / 1e6 / (time.perf_counter() - began)]
        series[f"{name}: missing"] = [float(size - came)]
        await kernel.close()
    await system.close()
    return series


async def idle(system: System, *, n: int) -> Series:
    """What a kernel that does nothing costs, with some of its kind alive."""
    await system.open()
    kernels = [await system.kernel() for _ in range(n)]
    await asyncio.sleep(SETTLE)
    series = _weigh("started", n)
    for kernel in kernels:
        await kernel.execute("x = 1")
    await asyncio.sleep(SETTLE + n * _CHECKPOINT)
    series |= _weigh("used", n)
    for kernel in kernels:
        await kernel.close()
    await system.close()
    return series


def _weigh(state: str, n: int) -> Series:
    """Return each kernel's share of memory: the process that its first process is for, and those below that."""
    roots = memory.children(memory.own())
    total = memory.pss(memory.below(memory.own())) / n
    # cellblock has a zygote in between, whose youngest child is no kernel yet: it waits for somebody to want it.
    if len(roots) == 1 and len(memory.children(roots[0])) == n + 1:
        roots = memory.children(roots[0])[:n]
        inits = [memory.pss([root]) for root in roots]
        workers = [memory.pss(memory.below(root)) for root in roots]
        both = [init + worker for init, worker in zip(inits, workers, strict=True)]
        parts = {f"{state}: init": inits, f"{state}: worker": workers, f"{state}: kernel": both}
        return {**parts, f"{state}: all processes": [total]}
    return {f"{state}: kernel": [total], f"{state}: all processes": [total]}


async def rate(system: System, *, n: int, at_once: int, isolate: str = "none") -> Series:
    """Kernels made, used for one cell and ended per second, some at once."""
    await system.open()
    await (await system.kernel(isolate)).close()

    async def one() -> None:
        kernel = await system.kernel(isolate)
        await kernel.execute("x = 1")
        await kernel.close()

    async def in_turn(count: int) -> None:
        for _ in range(count):
            await one()

    shares = [n // at_once] * at_once
    began = time.perf_counter()
    if system.blocking:
        await asyncio.gather(*(asyncio.to_thread(asyncio.run, in_turn(share)) for share in shares))
    else:
        await asyncio.gather(*map(in_turn, shares))
    took = time.perf_counter() - began
    await system.close()
    return {"per second": [sum(shares) / took]}


async def many(system: System, *, n: int) -> Series:
    """Many kernels alive at once, each answering."""
    await system.open()
    began = time.perf_counter()
    kernels: list[Kernel] = []
    for _ in range(n):
        kernels.append(await system.kernel())  # noqa: PERF401  # one after the other is meant
    took = (time.perf_counter() - began) / n
    times: list[float] = []
    answered = 0
    for number, kernel in enumerate(kernels):
        answered += await kernel.execute(f"print({number})") == str(number)
    await asyncio.sleep(SETTLE)
    for _ in range(2):
        for kernel in kernels:
            began = time.perf_counter()
            await kernel.execute("x = 1")
            times.append(ms(began))
    await asyncio.gather(*(kernel.close() for kernel in kernels))
    await system.close()
    return {"answered": [float(answered)], "ms": times, "ms to make one": [took * 1000]}


async def cold(system: System, *, n: int) -> Series:
    """A whole program that runs one cell."""
    return {"ms": [_run(system.cold) for _ in range(n)]}


async def imports(system: System, *, n: int) -> Series:
    """What the import adds to a Python program that does nothing."""
    bare, over = [], []
    for _ in range(n):
        bare.append(_run("pass"))
        over.append(_run(f"import {system.module}") - bare[-1])
    return {"ms": over, "bare": bare}


def _run(program: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=True)
    return ms(began)


_SLEEPS = "import time\ntime.sleep({seconds})"
_IGNORES = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
end = time.time() + {seconds}
while time.time() < end: pass
"""


async def timeout(system: System, *, n: int, seconds: float, deadline: float = 0.5) -> Series:
    """How long after its deadline a cell returns, and how long after that the next one is answered."""
    await system.open()
    series: Series = {}
    for name, code in (("sleeps", _SLEEPS), ("ignores signals", _IGNORES)):
        late, following = series.setdefault(name, []), series.setdefault(f"{name}: next cell", [])
        for _ in range(n):
            kernel = await system.kernel()
            await kernel.execute("x = 1")
            began = time.perf_counter()
            await kernel.execute(code.format(seconds=seconds), timeout=deadline)
            late.append(ms(began) - deadline * 1000)
            began = time.perf_counter()
            await kernel.execute("print(6 * 7)")
            following.append(ms(began))
            await kernel.close()
    await system.close()
    return series
