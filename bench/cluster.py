"""Sessions on a Ray cluster of three nodes on this machine, against the daemon, in one run.

python bench/cluster.py                        200 sessions, 300 cells, 2,000 placements, 200 rollouts
python bench/cluster.py --sessions 1000 --rollouts 10000

Prints JSON: sessions made in a second over all nodes; a cell by the link to the cluster and to the daemon in turn; placements
that the director makes in a second; rollouts: make a session, three cells, a check, the end; the same by Ray tasks that
start a kernel of Jupyter each; and how soon the loss of a node is known.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_OPTIONS = {"recovery": "rolling"}
_AT_ONCE = 16


async def _gathered(count: int, at_once: int, one: Any) -> list[Any]:
    room = asyncio.Semaphore(at_once)

    async def admitted(number: int) -> Any:
        async with room:
            return await one(number)

    return await asyncio.gather(*map(admitted, range(count)))


async def _sessions(hosts: Any, count: int) -> dict[str, Any]:
    """Make so many sessions, and run a cell in each."""
    began = time.perf_counter()
    made = await _gathered(count, 64, lambda number: hosts.get_or_create(f"bench-{number}", **_OPTIONS))
    seconds = time.perf_counter() - began
    texts = await _gathered(count, 64, lambda number: made[number].execute(str(number)))
    assert [result.text for result in texts] == [str(number) for number in range(count)]
    nodes = sorted(sum(session.id.endswith(mark) for session in made) for mark in {session.id[-8:] for session in made})
    await _gathered(count, 64, lambda number: made[number].close())
    return {"count": count, "seconds": round(seconds, 2), "per_second": round(count / seconds), "on_nodes": nodes}


async def _cells(hosts: Any, count: int) -> dict[str, Any]:
    """Run cells by the daemon and by the cluster in turn."""
    from cellblock.operations.executions import Submit
    from cellblock.operations.sessions import Create, Destroy
    from cellblock.service.daemon.link import DaemonLink

    daemon = DaemonLink()
    workspace = tempfile.mkdtemp(prefix="cellblock-bench-")
    await daemon.call(Create("bench", {**_OPTIONS, "working_dir": workspace}))
    here = await hosts.get_or_create("bench", **_OPTIONS)
    times: dict[str, list[float]] = {"daemon": [], "cluster": []}
    try:
        for number in range(count):
            for name, link in (("daemon", daemon), ("cluster", hosts.link)):
                began = time.perf_counter()
                await link.call(Submit("bench", wait=True, key=f"{name}-{number}"), b"x = 1")
                times[name].append(time.perf_counter() - began)
    finally:
        await daemon.call(Destroy("bench"))
        await here.close()
        await daemon.close()
        os.rmdir(workspace)
    middle = {name: statistics.median(each) * 1000 for name, each in times.items()}
    ratio = middle["cluster"] / middle["daemon"]
    return {name: round(value, 3) for name, value in middle.items()} | {"ratio": round(ratio, 2), "unit": "ms, median"}


async def _placements(hosts: Any, count: int) -> dict[str, Any]:
    """Ask the director for places of so many new names, which nobody uses."""
    from cellblock.cluster.placing import Placing

    placing = Placing(hosts.link.director)
    began = time.perf_counter()
    await _gathered(count, 200, lambda number: placing.place(f"place-{number}", 1, [], 10.0))
    seconds = time.perf_counter() - began
    return {"count": count, "per_second": round(count / seconds)}


async def _rollouts(hosts: Any, count: int) -> dict[str, Any]:
    """Run rollouts, each of which writes its number once."""
    times: list[float] = []

    async def one(number: int) -> str:
        began = time.perf_counter()
        async with hosts.session(**_OPTIONS) as session:
            await session.execute(f"n = {number}")
            await session.execute("total = sum(range(1000))")
            await session.execute("open('n', 'a').write(f'{n}\\n')")
            checked = await session.exec(["cat", "n"])
        times.append(time.perf_counter() - began)
        return bytes(checked.stdout).decode()

    began = time.perf_counter()
    found = await _gathered(count, _AT_ONCE, one)
    seconds = time.perf_counter() - began
    wrong = sum(text != f"{number}\n" for number, text in enumerate(found))
    return {
        "count": count,
        "per_second": round(count / seconds, 1),
        "seconds_each": round(statistics.median(times), 3),
        "lost_or_doubled": wrong,
    }


async def _losses(hosts: Any, count: int) -> dict[str, Any]:
    """Kill a node's daemon and its supervisor; measure when a client that waits there hears it, and when the director does."""
    from cellblock.errors import CellblockError

    heard, known = [], []
    for number in range(count):
        session = await hosts.get_or_create(f"lost-{number}", patience=120, **_OPTIONS)
        waiting = asyncio.ensure_future(session.execute("import time; time.sleep(600)"))
        await asyncio.sleep(1)
        node = next(one for one in (await hosts.status())["nodes"] if session.id.endswith(one["mark"]))
        until = asyncio.ensure_future(hosts.link.director.asked("until_lost", node["mark"]))
        supervisor = node["processes"]["node"]
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        began = time.perf_counter()
        for pid in (supervisor, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
        with suppress(CellblockError):
            await waiting
        heard.append(time.perf_counter() - began)
        await asyncio.wait([until])
        known.append(time.perf_counter() - began)
    return {
        "count": count,
        "client_raises_ms": round(statistics.median(heard) * 1000, 1),
        "director_knows_ms": round(statistics.median(known) * 1000, 1),
        "slowest_ms": round(max(known) * 1000, 1),
    }


def _with_ipykernel(number: int) -> str:
    """Start a kernel of Jupyter, run three cells and a check, and end it: what a task does without cellblock."""
    import tempfile

    from jupyter_client.manager import start_new_kernel

    with tempfile.TemporaryDirectory() as directory:
        manager, client = start_new_kernel(cwd=directory)
        try:
            for code in (f"n = {number}", "total = sum(range(1000))", "open('n', 'a').write(f'{n}\\n')"):
                client.execute_interactive(code, output_hook=lambda _: None, timeout=60)
            return (Path(directory) / "n").read_text()
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


async def _ipykernels(count: int) -> dict[str, Any]:
    """Run Ray tasks that start a kernel of Jupyter each, as many at once as Ray has processors for."""
    import ray

    task = ray.remote(num_cpus=0.5, max_retries=0)(_with_ipykernel)
    began = time.perf_counter()
    found = await asyncio.to_thread(ray.get, [task.remote(number) for number in range(count)])
    seconds = time.perf_counter() - began
    wrong = sum(text != f"{number}\n" for number, text in enumerate(found))
    return {"count": count, "per_second": round(count / seconds, 2), "lost_or_doubled": wrong}


async def _measure(given: argparse.Namespace, address: str) -> dict[str, Any]:
    from cellblock.cluster import ClusterOptions, RayHosts

    async with RayHosts(address, options=ClusterOptions(memory=4 << 30, session_memory=8 << 20, cpus=0.5, lease=60)) as hosts:
        await hosts.link.director.asked("status_soon", 120.0)
        await _sessions(hosts, 30)  # so that each node has warmed up
        found: dict[str, Any] = {"load_before": os.getloadavg()[0]}
        found |= {"cells": await _cells(hosts, given.cells), "sessions": await _sessions(hosts, given.sessions)}
        found |= {"rollouts": await _rollouts(hosts, given.rollouts), "placements": await _placements(hosts, given.placements)}
        found |= {"ipykernels": await _ipykernels(given.kernels), "losses": await _losses(hosts, given.losses)}
        return found


def main() -> None:
    """Start nodes, measure, and end them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, count in (
        ("sessions", 200),
        ("cells", 300),
        ("placements", 2000),
        ("rollouts", 200),
        ("kernels", 20),
        ("losses", 5),
    ):
        parser.add_argument(f"--{name}", type=int, default=count)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cellblock-bench-") as home:
        os.environ["CELLBLOCK_HOME"] = home
        from cellblock.cluster import local
        from cellblock.service.daemon import control

        address = local.start_nodes(3)
        try:
            found = asyncio.run(_measure(given, address))
        finally:
            import ray

            ray.shutdown()
            local.stop_nodes()
            control.stop()
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
