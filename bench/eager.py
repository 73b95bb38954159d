"""A cell that a model writes: the time from its last token to its result, if it runs while it is written, and if not."""

from __future__ import annotations

import asyncio
import time

from bench.cases import Series
from bench.systems import System
from cellblock import Host, Session

_TEXT = """import json, statistics, time
time.sleep(0.5)  # what loading the data takes
rows = [{"city": city, "value": number * number % 97} for number, city in enumerate(["a", "b", "c"] * 500)]

def mean(city):
    return statistics.mean(row["value"] for row in rows if row["city"] == city)

summary = {city: round(mean(city), 2) for city in "abc"}
best = max(summary, key=summary.get)
print(json.dumps(summary))
best
"""
_PAUSE = 1 / 60
_TOKEN = 4  # characters


async def written(session: Session, *, eager: bool) -> float:
    """Have the cell written; return the seconds from its last token to its result."""
    parts = [_TEXT[start : start + _TOKEN] for start in range(0, len(_TEXT), _TOKEN)]
    if not eager:
        for _ in parts:
            await asyncio.sleep(_PAUSE)
        began = time.perf_counter()
        assert (await session.execute(_TEXT)).ok
        return time.perf_counter() - began
    async with session.eager() as cell:
        for part in parts:
            await asyncio.sleep(_PAUSE)
            cell.feed(part)
        began = time.perf_counter()
        assert (await cell.finish()).ok
        return time.perf_counter() - began


async def eager(_system: System, *, n: int) -> Series:
    """A cell that takes half a second, at 60 tokens a second, both ways in turns."""
    series: Series = {"eager": [], "afterwards": []}
    async with Host() as host, host.session() as session:
        for _ in range(n):
            for name, times in series.items():
                times.append(1000 * await written(session, eager=name == "eager"))
    return series
