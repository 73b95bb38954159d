"""Measures how costs grow with the number of live sessions, and writes a table, a JSON file and a chart.

python bench/growth.py                      10, 100, 500, 1,000 and 2,000 sessions, without and in the sandbox: some minutes
python bench/growth.py --counts 10 100      a look

At each count, with that many sessions alive: creation (to the first result), one round trip of ``x = 1``, and the end of a
session, as medians; and what the machine's free memory has lost since before the first session, per session. That counts
everything: page tables, namespaces and sockets as well as the pages of processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from bench import report  # noqa: E402
from cellblock import Host, Session  # noqa: E402

COUNTS = (10, 100, 500, 1000, 2000)
SAMPLES = 20


class Point(TypedDict):
    """What was measured at one count. Times are medians in milliseconds, memory is in MB of 10⁶ bytes for each session."""

    isolate: str
    alive: int
    create: float
    round_trip: float
    close: float
    memory: float


async def measure(isolate: Literal["none", "native"], counts: Sequence[int], place: Path) -> list[Point]:
    """Return a point for each count."""
    points: list[Point] = []
    async with Host(isolate=isolate) as host:
        live: list[Session] = []

        async def add() -> float:
            directory = place / str(len(live))
            directory.mkdir(exist_ok=True)
            began = time.perf_counter()
            live.append(host.session(working_dir=directory))
            await live[-1].start()
            await live[-1].execute("x = 1")
            return time.perf_counter() - began

        await add()  # starts the zygote
        free = available()
        for count in counts:
            while len(live) < count:
                await add()
            await asyncio.sleep(1)
            used = (free - available()) / max(1, len(live) - 1)
            created = [await add() for _ in range(SAMPLES)]
            trips = [await timed(session.execute("x = 1")) for session in live[-SAMPLES:] for _ in range(5)]
            closed = [await timed(live.pop().close()) for _ in range(SAMPLES)]
            points.append(
                Point(
                    isolate=isolate,
                    alive=count,
                    create=median(created),
                    round_trip=median(trips),
                    close=median(closed),
                    memory=used,
                )
            )
            print(line(points[-1]))
    return points


async def timed(awaitable: object) -> float:
    """Return how many seconds something took."""
    began = time.perf_counter()
    await awaitable  # type: ignore[misc]  # whatever can be awaited
    return time.perf_counter() - began


def median(seconds: Sequence[float]) -> float:
    """Return a median in milliseconds."""
    return statistics.median(seconds) * 1000


def available() -> float:
    """Return the machine's available memory in MB of 10⁶ bytes."""
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024 / 1e6


def line(point: Point) -> str:
    """Return a point as a row of the table."""
    figures = (report.number(value) for value in (point["create"], point["round_trip"], point["close"], point["memory"]))
    return f"| {point['alive']:,} | {'yes' if point['isolate'] == 'native' else 'no'} | {' | '.join(figures)} |"


def table(points: Sequence[Point]) -> str:
    """Return the points as a Markdown table."""
    head = "| sessions alive | sandbox | creation, ms | round trip, ms | close, ms | memory each, MB |"
    return "\n".join([head, "| ---: | --- | ---: | ---: | ---: | ---: |", *map(line, points)])


def chart(points: Sequence[Point], path: Path) -> None:
    """Draw creation, round trip and close against the number of live sessions."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6))
    for axis, (key, title) in zip(
        axes, (("create", "creation"), ("round_trip", "round trip"), ("close", "close")), strict=True
    ):
        for isolate, label in (("none", "no sandbox"), ("native", "sandbox")):
            chosen = [point for point in points if point["isolate"] == isolate]
            axis.plot([point["alive"] for point in chosen], [point[key] for point in chosen], marker="o", label=label)  # type: ignore[literal-required]
        axis.set(title=f"{title}, p50", xlabel="live sessions", ylabel="ms", xscale="log", ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, and write everything down."""
    parser = argparse.ArgumentParser(description="How costs grow with the number of live sessions.")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--out", type=Path, default=ROOT, help="where bench/results and docs lie")
    options = parser.parse_args()
    points: list[Point] = []
    for isolate in ("none", "native"):
        with tempfile.TemporaryDirectory(prefix="cellblock-growth-") as place:
            points += asyncio.run(measure(isolate, sorted(options.counts), Path(place)))
    print(table(points))
    (options.out / "bench" / "results" / "growth.json").write_text(
        json.dumps({"machine": report.machine(), "points": points}, indent=1) + "\n"
    )
    chart(points, options.out / "docs" / "growth.png")


if __name__ == "__main__":
    main()
