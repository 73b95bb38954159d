"""Runs every case of every area, or those that are named: ``python bench/turns/run.py [output egress.flood ...]``."""

from __future__ import annotations

import asyncio
import importlib
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from bench import turns  # noqa: E402  # the path has to be there first

TARGET = 0.05


def cases() -> Iterator[tuple[str, str]]:
    for info in pkgutil.iter_modules(turns.__path__):
        if info.name != "run":
            module = importlib.import_module(f"bench.turns.{info.name}")
            yield from ((info.name, name.removeprefix("case_")) for name in vars(module) if name.startswith("case_"))


async def measure(area: str, case: str) -> turns.Turns:
    attack = getattr(importlib.import_module(f"bench.turns.{area}"), f"case_{case}")
    with turns.watched() as seen:
        await attack()
    return seen


def main() -> int:
    if sys.argv[1:2] == ["--one"]:
        seen = asyncio.run(measure(*sys.argv[2].split(".")))
        print(json.dumps({"worst": seen.worst, "elapsed": seen.elapsed, "count": seen.count}))
        return 0
    over = 0
    for area, case in cases():
        if sys.argv[1:] and not {area, f"{area}.{case}"} & {*sys.argv[1:]}:
            continue
        done = subprocess.run(
            [sys.executable, __file__, "--one", f"{area}.{case}"], stdout=subprocess.PIPE, text=True, timeout=300, check=False
        )
        if done.returncode:
            print(f"{area}.{case:32} failed")
            over += 1
            continue
        seen = json.loads(done.stdout)
        worst, elapsed = seen["worst"], seen["elapsed"]
        over += worst > TARGET
        note = "  over the target" if worst > TARGET else ""
        print(f"{area}.{case:32} {worst * 1000:8.1f} ms, with other programs {elapsed * 1000:6.1f} ms{note}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
