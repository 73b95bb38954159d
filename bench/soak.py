"""Clients run cells in many sessions over HTTP for minutes: what grows meanwhile, and what is lost, doubled or out of order.

python bench/soak.py                                        ten minutes, 50 sessions, 32 clients; writes docs/performance.md
python bench/soak.py --minutes 0.2 --sessions 4 --clients 4 a look

Each client takes a session at random, and sends it a cell that prints, with an idempotency key. Each session counts its
cells and keeps the numbers that clients gave them. At the end, every number that was sent must be there once, those of each
client in the order in which it sent them, and each cell must have been answered with its own count.

Memory, descriptors and disk are those of the daemon, the custodian and the gateway: before there is a session, right after the
last cell, and when all sessions have ended. The disk is that of the state directory.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from bench import report, rest  # noqa: E402
from bench.cases import ms  # noqa: E402

_CELL = "seen = globals().setdefault('seen', []); seen.append({number}); print({number}, len(seen)); print('x' * {size})"
_SEEN = "import hashlib; print(hashlib.sha256(repr(globals().get('seen', [])).encode()).hexdigest())"
_SIZES = (0, 0, 0, 0, 0, 0, 0, 200, 2_000, 20_000)
"""Characters that a cell prints besides: one of these."""

_QUIET = 15.0
"""Seconds after the last session has ended, in which what was used can be given back"""


class Taken(TypedDict):
    """What a process has, in MB of 10⁶ bytes, and how many descriptors it has open."""

    memory: float
    files: int


class Look(TypedDict):
    """What there was at one moment. The disk is in MB of 10⁶ bytes."""

    daemon: Taken
    custodian: Taken
    gateway: Taken
    disk: float
    log: float


class Soaked(TypedDict):
    """What came of it."""

    seconds: float
    sessions: int
    clients: int
    executions: int
    per_second: float
    p50: float
    p99: float
    end: float
    wrong: list[str]
    before: Look
    after: Look
    ended: Look


class Answer(NamedTuple):
    """One cell that was answered: its client and number, and what its session had counted."""

    client: int
    number: int
    at: int


async def soak(port: int, home: Path, gateway: int, seconds: float, sessions: int, clients: int) -> Soaked:
    """Run cells for some time.

    Args:
        port: Where the gateway listens.
        home: The state directory.
        gateway: The gateway's process.
        seconds: For how long.
        sessions: In how many sessions.
        clients: By how many clients at once.
    """
    rest.made(port, 0)
    await asyncio.to_thread(rest.ask, port, "DELETE", "/kernels")
    await asyncio.sleep(2)
    pids = {"gateway": gateway, **processes(home)}
    before = look(pids, home)
    kernels = [rest.made(port, number) for number in range(sessions)]
    times: list[float] = []
    answers: dict[int, list[Answer]] = defaultdict(list)
    wrong: list[str] = []
    began = time.perf_counter()

    async def client(mine: int) -> None:
        _, connection = await asyncio.get_running_loop().create_connection(rest.Client, "127.0.0.1", port)
        chance, number = random.Random(mine), mine
        while time.perf_counter() - began < seconds:
            place = chance.randrange(sessions)
            code = _CELL.format(number=number, size=chance.choice(_SIZES))
            key = f"Idempotency-Key: {mine}-{number}\r\n"
            body = json.dumps({"code": code}).encode()
            at = time.perf_counter()
            answer = json.loads(await connection.ask(rest.posted(port, f"/kernels/{kernels[place]}/execute", body, key)))
            times.append(ms(at))
            told = str(answer.get("output", "")).split()[:2]
            if len(told) != 2 or told[0] != str(number):
                wrong.append(f"cell {number} was answered with {str(answer)[:200]}")
            else:
                answers[place].append(Answer(mine, number, int(told[1])))
            number += clients

    await asyncio.gather(*map(client, range(clients)))
    took = time.perf_counter() - began
    after = look(pids, home)
    for place, kernel in enumerate(kernels):
        code = {"code": _SEEN}
        seen = str((await asyncio.to_thread(rest.ask, port, "POST", f"/kernels/{kernel}/execute", code))["output"])
        wrong += compare(place, answers[place], seen)
    at = time.perf_counter()
    await asyncio.to_thread(rest.ask, port, "DELETE", "/kernels")
    end = time.perf_counter() - at
    await asyncio.sleep(_QUIET)
    ordered = sorted(times)
    return {
        "seconds": took,
        "sessions": sessions,
        "clients": clients,
        "executions": len(times),
        "per_second": len(times) / took,
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[int(len(ordered) * 0.99)],
        "end": end,
        "wrong": wrong,
        "before": before,
        "after": after,
        "ended": look(pids, home),
    }


def compare(place: int, answers: Sequence[Answer], seen: str) -> Iterator[str]:
    """Yield what is wrong in one session.

    Args:
        place: Its number.
        answers: What was answered.
        seen: A digest of the numbers of the cells that it has run, in order (`digest`).
    """
    counts = sorted(answer.at for answer in answers)
    if counts != [*range(1, len(answers) + 1)]:
        yield f"session {place} has run {counts[-1:] or 0} cells, and {len(answers)} were answered"
    ran = [answer.number for answer in sorted(answers, key=lambda answer: answer.at)]
    if seen.strip() != digest(ran):
        yield f"session {place} has run other cells than were answered, or in another order"
    for client in {answer.client for answer in answers}:
        if any(one.at > other.at for one, other in pairwise(answer for answer in answers if answer.client == client)):
            yield f"session {place} has run cells of client {client} in another order than they were sent"


def digest(numbers: Sequence[int]) -> str:
    """Return a digest of numbers, as a session returns it of those that it has seen."""
    return hashlib.sha256(repr([*numbers]).encode()).hexdigest()


def processes(home: Path) -> dict[str, int]:
    """Return the processes of a daemon."""
    command = [sys.executable, "-m", "cellblock", "daemon", "status", "--json"]
    about = json.loads(subprocess.run(command, env={**os.environ, "CELLBLOCK_HOME": str(home)}, capture_output=True).stdout)
    return {"daemon": about["pid"], "custodian": about["custodian"]}


def look(pids: dict[str, int], home: Path) -> Look:
    """Return what there is now."""
    files = [path.stat().st_size / 1e6 for path in home.rglob("*") if path.is_file()]
    log = home / "named.db-wal"
    return {
        "daemon": taken(pids["daemon"]),
        "custodian": taken(pids["custodian"]),
        "gateway": taken(pids["gateway"]),
        "disk": sum(files),
        "log": log.stat().st_size / 1e6 if log.exists() else 0.0,
    }


def taken(pid: int) -> Taken:
    """Return what a process has now."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (memory,) = (int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return {"memory": memory * 1024 / 1e6, "files": len(os.listdir(f"/proc/{pid}/fd"))}


def table(soaked: Soaked) -> str:
    """Return it as Markdown."""
    looks: tuple[tuple[str, Look], ...] = (
        ("before the first session", soaked["before"]),
        ("after the last cell", soaked["after"]),
        ("when all sessions have ended", soaked["ended"]),
    )
    names = ("daemon", "custodian", "gateway")
    head = f"|  | {' | '.join(f'{name}, MB' for name in names)} | descriptors of each | state on disk, MB | of it the log |"
    lines = [head, "| --- | ---: | ---: | ---: | --- | ---: | ---: |"]
    for when, there in looks:
        each: list[Taken] = [there["daemon"], there["custodian"], there["gateway"]]
        memory = " | ".join(report.number(one["memory"]) for one in each)
        files = ", ".join(f"{one['files']:,}" for one in each)
        lines.append(f"| {when} | {memory} | {files} | {report.number(there['disk'])} | {report.number(there['log'])} |")
    wrong = "nothing was lost, doubled or out of order" if not soaked["wrong"] else f"**{len(soaked['wrong'])} were wrong**"
    said = (
        f"{soaked['seconds'] / 60:.1f} minutes, {soaked['sessions']} sessions, {soaked['clients']} clients: "
        f"{soaked['executions']:,} executions, {report.number(soaked['per_second'])} in a second; p50 "
        f"{report.number(soaked['p50'])} ms, p99 {report.number(soaked['p99'])} ms; {wrong}. "
        f"To end all sessions took {report.number(soaked['end'])} s."
    )
    return "\n".join([said, "", *lines])


@contextmanager
def served(home: Path, workspace: Path) -> Iterator[tuple[int, int]]:
    """Run a gateway and its daemon; yield its port and its process."""
    environment = {**os.environ, "CELLBLOCK_HOME": str(home)}
    port = rest.free_port()
    program = rest.SERVE["cellblock"].format(port=port)
    server = subprocess.Popen([sys.executable, "-c", program], env=environment, cwd=workspace, stderr=subprocess.DEVNULL)
    try:
        yield port, server.pid
    finally:
        server.terminate()
        server.wait()
        subprocess.run(
            [sys.executable, "-m", "cellblock", "daemon", "stop"], env=environment, capture_output=True, check=False
        )


def main() -> None:
    """Measure, and write everything down."""
    parser = argparse.ArgumentParser(description="What grows while many clients run cells for minutes.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--out", type=Path, default=ROOT, help="where bench/results and docs lie")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as home,
        tempfile.TemporaryDirectory() as workspace,
        served(Path(home), Path(workspace)) as (port, gateway),
    ):
        wanted = soak(port, Path(home), gateway, options.minutes * 60, options.sessions, options.clients)
        soaked = asyncio.run(wanted)
    print(table(soaked))
    for wrong in soaked["wrong"][:20]:
        print(wrong)
    report.insert(options.out / "docs" / "performance.md", table(soaked), "soak")
    kept: dict[str, Any] = {"machine": report.machine(), "soak": soaked}
    (options.out / "bench" / "results" / "soak.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
