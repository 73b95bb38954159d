"""A cell that a model writes: the time from its last token to its result, if it runs while it is written, and if not.

python bench/eager.py                   a cell that takes half a second, at 60 tokens a second
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from cellblock import Host, Session  # noqa: E402

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


async def main() -> None:
    """Measure both, in turns."""
    with tempfile.TemporaryDirectory() as directory:
        async with Host() as host, host.session(working_dir=directory) as session:
            times: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(5):
                for eager, found in times.items():
                    found.append(await written(session, eager=eager))
    for eager, found in times.items():
        name = "while it is written" if eager else "when it is complete"
        print(f"{name}: {1000 * statistics.median(found):.1f} ms from the last token to the result")


if __name__ == "__main__":
    asyncio.run(main())
