"""Rollouts: make a session, three cells, a verifier beside the kernel, the end; against a Jupyter kernel for each, in one run.

python bench/rollouts.py                     200 rollouts of each kind, 4 at a time
python bench/rollouts.py --soak 10000        so many of the quickest kind: none lost, none doubled, nothing left

In the form of prime-rl's runtime benchmark: seconds from admission until the session takes code (boot), until the first cell
is done (set-up), and the whole; rollouts a second; errors.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from bench import memory  # noqa: E402

_CELLS = ("import pandas as pd; frame = pd.DataFrame({'a': range(1000)})", "total = int(frame.a.sum())", "print(total)")
_VERIFY = [sys.executable, "-I", "-S", "-c", "print('499500')"]
_RIGHT = "499500"


class Times(NamedTuple):
    """Seconds of one rollout, and what its last cell printed."""

    boot: float
    setup: float
    whole: float
    printed: str


Kind = Callable[[int, int], Awaitable[list[Times]]]


async def many(one: Callable[[int], Awaitable[Times]], count: int, at_once: int) -> list[Times]:
    """Do so many, so many at a time."""
    room = asyncio.Semaphore(at_once)

    async def admitted(number: int) -> Times:
        async with room:
            return await one(number)

    return await asyncio.gather(*map(admitted, range(count)))


async def _in_pool(pool: object, count: int) -> list[Times]:
    from cellblock import Pool, Rollout

    assert isinstance(pool, Pool)

    async def work(rollout: Rollout) -> Times:
        begin = rollout.trajectory.events[0]["boot"]
        began = time.perf_counter()
        results = [await rollout.execute(_CELLS[0])]
        setup = time.perf_counter() - began
        results += [await rollout.execute(code) for code in _CELLS[1:]]
        verdict = await rollout.exec(_VERIFY)
        assert verdict.out.strip() == _RIGHT, verdict
        return Times(begin, begin + setup, begin + time.perf_counter() - began, (results[-1].text or "").strip())

    return await asyncio.gather(*(pool.run(work, str(number), seed=number) for number in range(count)))


async def cold(count: int, at_once: int) -> list[Times]:
    """Sandboxed sessions from nothing; pandas is imported by the first cell."""
    from cellblock import Pool

    async with Pool(at_once) as pool:
        return await _in_pool(pool, count)


async def preloaded(count: int, at_once: int) -> list[Times]:
    """Sandboxed sessions, each in a sandbox of its own, with pandas preloaded."""
    from cellblock import Host, Pool

    async with Host(preload=["pandas"]) as host, Pool(at_once, host=host) as pool:
        return await _in_pool(pool, count)


async def from_checkpoint(count: int, at_once: int) -> list[Times]:
    """Branches of a session that has loaded pandas, with files of their own."""
    from cellblock import CodeExecutor, Host, Policy, Pool

    # The branches are in the sandbox of the session that they come from, and share its limits.
    policy = Policy.parse({"resources": {"processes": 30000, "memory": 2**34}})
    with tempfile.TemporaryDirectory() as directory:
        async with Host() as host, CodeExecutor(host=host, working_dir=directory, policy=policy) as executor:
            await executor.execute("import pandas")
            checkpoint = await executor.checkpoint(files="copy")
            async with Pool(at_once, host=host, start_from=checkpoint, policy=policy) as pool:
                return await _in_pool(pool, count)


async def jupyter(count: int, at_once: int) -> list[Times]:
    """An ipykernel for each, by jupyter_client, without a sandbox; the verifier is a subprocess of the host."""
    from jupyter_client.asynchronous.client import AsyncKernelClient
    from jupyter_client.manager import AsyncKernelManager

    async def one(_number: int) -> Times:
        began = time.perf_counter()
        manager = AsyncKernelManager()
        await manager.start_kernel()
        client: AsyncKernelClient = manager.client()
        client.start_channels()
        try:
            await client.wait_for_ready()
            boot = time.perf_counter() - began
            printed: list[str] = []

            def hook(message: dict[str, dict[str, str]]) -> None:
                printed.append(message["content"].get("text", ""))

            await client.execute_interactive(_CELLS[0], output_hook=hook)
            setup = time.perf_counter() - began
            for code in _CELLS[1:]:
                await client.execute_interactive(code, output_hook=hook)
            verify = await asyncio.create_subprocess_exec(*_VERIFY, stdout=asyncio.subprocess.PIPE)
            assert (await verify.communicate())[0].strip() == _RIGHT.encode()
        finally:
            client.stop_channels()
            await manager.shutdown_kernel(now=True)
        return Times(boot, setup, time.perf_counter() - began, "".join(printed).strip())

    return await many(one, count, at_once)


async def bubblewrap(count: int, at_once: int) -> list[Times]:
    """A Python in bubblewrap for each, which runs the three cells as one script: no session, no state, no pictures."""
    script = "\n".join(_CELLS)

    async def one(_number: int) -> Times:
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--unshare-all"),
            *(sys.executable, "-c", script),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        done = time.perf_counter() - began
        verify = await asyncio.create_subprocess_exec(*_VERIFY, stdout=asyncio.subprocess.PIPE)
        assert (await verify.communicate())[0].strip() == _RIGHT.encode()
        return Times(done, done, time.perf_counter() - began, out.decode().strip())

    return await many(one, count, at_once)


KINDS: dict[str, Kind] = {
    "cellblock, cold": cold,
    "cellblock, pandas preloaded": preloaded,
    "cellblock, from a checkpoint": from_checkpoint,
    "ipykernel by jupyter_client": jupyter,
    "bubblewrap, one script": bubblewrap,
}


async def measured(name: str, count: int, at_once: int) -> str:
    """Do rollouts of one kind; return a row of the table."""
    began = time.perf_counter()
    try:
        times = await KINDS[name](count, at_once)
    except (ImportError, FileNotFoundError) as error:
        return f"| {name} | not here: {error} | | | | |"
    seconds = time.perf_counter() - began
    wrong = sum(one.printed != _RIGHT for one in times)

    def spread(values: list[float]) -> str:
        tenth = statistics.quantiles(values, n=10)
        return f"{1000 * statistics.median(values):,.0f} / {1000 * tenth[-1]:,.0f}"

    columns = [spread([getattr(one, part) for one in times]) for part in ("boot", "setup", "whole")]
    return f"| {name} | {' | '.join(columns)} | {count / seconds:.1f} | {wrong} |"


async def soak(count: int, at_once: int) -> None:
    """Do very many, and look for what is lost, doubled or left."""
    before = (memory.below(os.getpid()), len(os.listdir("/proc/self/fd")))
    began = time.perf_counter()
    times = await preloaded(count, at_once)
    seconds = time.perf_counter() - began
    wrong = sum(one.printed != _RIGHT for one in times)
    await asyncio.sleep(2)
    left = (len(memory.below(os.getpid())) - len(before[0]), len(os.listdir("/proc/self/fd")) - before[1])
    print(f"{len(times):,} rollouts in {seconds:,.0f} s, {count / seconds:.1f} a second; wrong: {wrong}")
    print(f"left: {left[0]} processes, {left[1]} descriptors")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--only", action="append", choices=[*KINDS])
    parser.add_argument("--soak", type=int, default=0)
    given = parser.parse_args()
    if given.soak:
        asyncio.run(soak(given.soak, given.at_once))
        return
    print(f"| {given.count} rollouts, {given.at_once} at a time | boot p50 / p90, ms | set-up | whole | a second | wrong |")
    print("|---|---|---|---|---|---|")
    for name in given.only or KINDS:
        print(asyncio.run(measured(name, given.count, given.at_once)), flush=True)


if __name__ == "__main__":
    main()
