"""Cells per second of many sessions: with the daemon of this machine, and with 1, 2 and 4 daemons as nodes of a cluster on it.

python bench/daemons.py                        16 sessions of each of 2 clients, 5 seconds of each kind, 2 rounds in turns
python bench/daemons.py --nodes 8 --clients 4  on a machine with more cores

Prints JSON. Clients are processes of their own, whose sessions all have a cell in flight all the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_OPTIONS = {"recovery": "rolling"}


async def _client(number: int, sessions: int, seconds: float) -> int:
    """Make sessions where the settings say; when told to by a line, run cells in all of them; return how many were run."""
    from cellblock.fronts import where
    from cellblock.operations.executions import Submit
    from cellblock.operations.sessions import Create, Destroy

    link = await asyncio.to_thread(where.open_link)
    names = [f"bench-{number}-{one}" for one in range(sessions)]
    for name in names:
        # A node makes a directory for each session. The daemon's would share this one.
        own = {} if os.environ["CELLBLOCK_RAY_ADDRESS"] else {"working_dir": tempfile.mkdtemp(dir=Path.cwd())}
        await link.call(Create(name, {**_OPTIONS, "sandbox": False, **own}))
        await link.call(Submit(name, wait=True, key=f"{name}-first"), b"x = 0")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    until = time.monotonic() + seconds

    async def run(name: str) -> int:
        count = 0
        while time.monotonic() < until:
            await link.call(Submit(name, wait=True, key=f"{name}-{count}"), b"x = 1")
            count += 1
        return count

    ran = sum(await asyncio.gather(*map(run, names)))
    for name in names:
        await link.call(Destroy(name))
    await link.close()
    return ran


def _measure(given: argparse.Namespace, address: str) -> dict[str, Any]:
    """Run all clients at once."""
    environment = {**os.environ, "CELLBLOCK_RAY_ADDRESS": address}
    about = [str(given.sessions), str(given.seconds)]
    clients = [
        subprocess.Popen(
            [sys.executable, __file__, "--client", str(number), *about],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(given.clients)
    ]
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
    load, before = os.getloadavg()[0], _busy()
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("go\n")
        client.stdin.flush()
    time.sleep(given.seconds)
    cores = round((_busy() - before) / given.seconds, 2)
    ran = [int(client.communicate()[0]) for client in clients]
    return {"per_second": round(sum(ran) / given.seconds), "cores": cores, "load": load}


def _busy() -> float:
    """Return how many seconds all processors together have worked."""
    user, nice, system, *_ = map(int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def _cluster(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "cellblock", "cluster", *arguments, "--json"]
    said: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return said


def _round(given: argparse.Namespace, found: dict[str, list[Any]]) -> None:
    found.setdefault("the daemon", []).append(_measure(given, ""))
    nodes = 1
    while nodes <= given.nodes:
        try:
            address = _cluster("start", "--nodes", str(nodes), "--memory", "4096", "--session-memory", "16")["address"]
            found.setdefault(f"{nodes} nodes", []).append(_measure(given, address))
        finally:
            _cluster("stop")
        nodes *= 2


def main() -> None:
    """Measure in turns."""
    if sys.argv[1:2] == ["--client"]:
        number, sessions, seconds = sys.argv[2:]
        sys.stdout.write(f"{asyncio.run(_client(int(number), int(sessions), float(seconds)))}\n")
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, count in (("sessions", 16), ("clients", 2), ("seconds", 5), ("rounds", 2), ("nodes", 4)):
        parser.add_argument(f"--{name}", type=int, default=count)
    given = parser.parse_args()
    found: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory(prefix="cellblock-bench-") as home:
        os.environ["CELLBLOCK_HOME"] = home
        os.chdir(tempfile.mkdtemp(dir=home))
        from cellblock.service.daemon import control

        try:
            for _ in range(given.rounds):
                _round(given, found)
        finally:
            control.stop()
            os.chdir(ROOT)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
