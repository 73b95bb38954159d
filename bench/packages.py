"""Seconds until a set of packages can be imported: pip, uv and cellblock, side by side, cold and warm.

Run ``python -m bench.packages polars pandas``. Each row is one run, because the network varies more than the machine: run it
several times. On a busy machine, compare processor time. pip and uv compile bytecode; cellblock does that in the background,
which is not counted. cellblock needs an interpreter without the packages: ``--python``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cellblock import Host


@contextmanager
def _directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="cellblock-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class _Cost(NamedTuple):
    """Elapsed seconds, and processor time of all processes."""

    seconds: float
    processor: float


def _processor() -> float:
    return sum(os.times()[:4])


def _cost(command: Sequence[str | Path]) -> _Cost:
    began, used = time.perf_counter(), _processor()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return _Cost(time.perf_counter() - began, _processor() - used)


def _pip(python: str, packages: Sequence[str], place: Path) -> Iterator[tuple[str, _Cost]]:
    for name in ("cold", "warm"):
        target = place / name
        command: list[str | Path] = [
            python,
            "-m",
            "pip",
            "install",
            "--cache-dir",
            place / "cache",
            "--target",
            target,
            *packages,
        ]
        yield f"pip, {name}", _cost(command)


def _uv(python: str, packages: Sequence[str], place: Path) -> Iterator[tuple[str, _Cost]]:
    for name in ("cold", "warm"):
        command: list[str | Path] = [
            "uv",
            "pip",
            "install",
            "--cache-dir",
            place / "cache",
            "--python",
            python,
            "--compile-bytecode",
        ]
        yield f"uv, {name}", _cost([*command, "--target", place / name, *packages])


async def _start(python: str, packages: Sequence[str]) -> _Cost:
    used = _processor()
    async with Host(python=python) as host:
        began = time.perf_counter()
        async with host.session(packages=packages):
            seconds = time.perf_counter() - began
    return _Cost(seconds, _processor() - used)


def _cellblock(python: str, packages: Sequence[str], place: Path) -> Iterator[tuple[str, _Cost]]:
    os.environ["CELLBLOCK_HOME"] = str(place / "home")
    (place / "work").mkdir()
    os.chdir(place / "work")
    store = place / "home" / "environments"
    for name, removed in (("cold", ()), ("warm", ()), ("new set of known wheels", ("answers", "environments"))):
        for part in removed:
            shutil.rmtree(store / part)
        yield f"cellblock, {name}", asyncio.run(_start(python, packages))


def main() -> None:
    """Print one row for each program and state of its cache."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="+")
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    programs: list[Callable[[str, Sequence[str], Path], Iterator[tuple[str, _Cost]]]] = [_pip, _uv, _cellblock]
    for program in programs:
        with _directory() as place:
            for name, cost in program(given.python, given.packages, place):
                print(f"{name:40} {cost.seconds:8.2f} s {cost.processor:8.2f} s of processor time", flush=True)
        os.chdir("/")


if __name__ == "__main__":
    main()
