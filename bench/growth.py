"""Measures how costs grow with the number of live sessions, and writes a table, a JSON file and a chart.

python bench/growth.py                      10, 100, 500, 1,000 and 2,000 sessions, without and in the sandbox: some minutes
python bench/growth.py --counts 10 100      a look

At each count, with that many sessions alive: creation (to the first result) of more sessions than ever before, one round trip
of ``x = 1``, the end of a session, and creation again, now that as many sessions have ended; as medians. And by how much the
machine's used memory has grown since before the first session, per session. That counts page tables, kernel stacks, namespaces
and sockets as well as the pages of processes, but not the cache of files.

The last column is what the machine itself takes for 2,000 fresh pages, about as many as one session writes to. In a virtual
machine it grows, too: a page that nobody has used lately must first be fetched from the machine below. Sessions that are
created again take the pages of those that have just ended, so they show what cellblock and Linux take.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypedDict

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from bench import report  # noqa: E402
from cellblock import Host, Session  # noqa: E402

COUNTS = (10, 100, 500, 1000, 2000)
SAMPLES = 20
PAGES = 2000


class Point(TypedDict):
    """What was measured at one count. Times are medians in milliseconds, memory is in MB of 10⁶ bytes for each session."""

    isolate: str
    alive: int
    again: float
    create: float
    round_trip: float
    close: float
    memory: float
    pages: float


async def measure(isolate: Literal["none", "native"], counts: Sequence[int], place: Path) -> list[Point]:
    """Return a point for each count."""
    points: list[Point] = []
    async with Host(isolate=isolate) as host:
        live: list[Session] = []

        async def add() -> float:
            directory = place / str(len(live))
            directory.mkdir(exist_ok=True)
            began = time.perf_counter()
            live.append(host.session(working_dir=directory, recovery="rolling"))
            await live[-1].start()
            await live[-1].execute("x = 1")
            return time.perf_counter() - began

        await add()  # starts the zygote
        before = memory_in_use()
        for count in counts:
            while len(live) < count:
                await add()
            await asyncio.sleep(1)
            used = (memory_in_use() - before) / max(1, len(live) - 1)
            with fresh_pages() as pages:
                created = [await add() for _ in range(SAMPLES)]
            trips = [await timed(session.execute("x = 1")) for session in live[-SAMPLES:] for _ in range(5)]
            closed = [await timed(live.pop().close()) for _ in range(SAMPLES)]
            again = [await add() for _ in range(SAMPLES)]
            for _ in range(SAMPLES):
                await live.pop().close()
            points.append(
                Point(
                    isolate=isolate,
                    alive=count,
                    again=median(again),
                    create=median(created),
                    round_trip=median(trips),
                    close=median(closed),
                    memory=used,
                    pages=pages,
                )
            )
            print(line(points[-1]))
    return points


@contextmanager
def fresh_pages() -> Iterator[float]:
    """Write to fresh pages, SAMPLES times PAGES of them, and keep them meanwhile; gives what PAGES took, in milliseconds."""
    kept, took = [], []
    for _ in range(SAMPLES):
        began = time.perf_counter()
        kept.append(mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        kept[-1][:: mmap.PAGESIZE] = bytes(PAGES)
        took.append(time.perf_counter() - began)
    try:
        yield median(took)
    finally:
        for memory in kept:
            memory.close()


async def timed(awaitable: object) -> float:
    """Return how many seconds something took."""
    began = time.perf_counter()
    await awaitable  # type: ignore[misc]  # whatever can be awaited
    return time.perf_counter() - began


def median(seconds: Sequence[float]) -> float:
    """Return a median in milliseconds."""
    return statistics.median(seconds) * 1000


def memory_in_use() -> float:
    """Return what processes and the kernel use of the machine's memory, less what can be dropped, in MB of 10⁶ bytes."""
    counted = {"AnonPages", "Shmem", "PageTables", "KernelStack", "SUnreclaim", "Percpu"}
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(value) for name, value, *_ in lines if name.rstrip(":") in counted) * 1024 / 1e6


def line(point: Point) -> str:
    """Return a point as a row of the table."""
    values = (point[key] for key in ("again", "round_trip", "close", "memory", "create", "pages"))
    figures = (report.number(value) for value in values)
    return f"| {point['alive']:,} | {'yes' if point['isolate'] == 'native' else 'no'} | {' | '.join(figures)} |"


def table(points: Sequence[Point]) -> str:
    """Return the points as a Markdown table."""
    columns = ("sessions alive", "sandbox", "creation, ms", "round trip, ms", "close, ms", "memory each, MB")
    head = f"| {' | '.join(columns)} | creation on fresh pages, ms | 2,000 fresh pages, ms |"
    return "\n".join([head, "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |", *map(line, points)])


def chart(points: Sequence[Point], path: Path) -> None:
    """Draw creation, round trip and close against the number of live sessions."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6))
    for axis, (key, title) in zip(
        axes, (("again", "creation"), ("round_trip", "round trip"), ("close", "close")), strict=True
    ):
        for isolate, label, style in (("none", "no sandbox", ":"), ("native", "sandbox", "--")):
            chosen = [point for point in points if point["isolate"] == isolate]
            axis.plot([point["alive"] for point in chosen], [point[key] for point in chosen], marker="o", label=label)  # type: ignore[literal-required]
            if key == "again":
                fresh = [point["create"] for point in chosen]
                axis.plot([point["alive"] for point in chosen], fresh, "k" + style, alpha=0.5, label=f"{label}, fresh pages")
        axis.set(title=f"{title}, p50", xlabel="live sessions", ylabel="ms", xscale="log", ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
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
    report.insert(options.out / "docs" / "performance.md", table(points), "growth")
    (options.out / "bench" / "results" / "growth.json").write_text(
        json.dumps({"machine": report.machine(), "points": points}, indent=1) + "\n"
    )
    chart(points, options.out / "docs" / "growth.png")


if __name__ == "__main__":
    main()
