"""Measures cellblock and its peers in one run, in turns, and writes a table, a JSON file and a chart.

python bench/run.py              everything, in about ten minutes
python bench/run.py --quick      a look, in about one: too few samples to quote
python bench/run.py --only "round trip" --only floor
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":  # and not where tests import it, whose own entry this would overwrite
    sys.path[0] = str(ROOT)

from bench import memory, peers, quiet, report  # noqa: E402
from bench.figures import FIGURES, FLOOR, Results, rows  # noqa: E402
from bench.steps import STEPS, Step  # noqa: E402
from bench.systems import NAMES, TITLES  # noqa: E402

_LIMIT = 180  # seconds for one measurement; what takes longer is broken
_PACKAGES = ("ipybox", "mcp", "kernelbox", "jupyter_client", "ipykernel", "ipython", "pandas", "matplotlib")


@dataclass(frozen=True, slots=True)
class Task:
    """One measurement: a case for a system, in a process of its own."""

    step: Step
    system: str
    round: int


def tasks(only: Sequence[str], systems: Sequence[str], quick: bool) -> list[Task]:
    """Return all measurements in order: rounds of steps of systems, so that a change of the machine hits all alike."""
    steps = [step for step in STEPS if not only or step.name in only]
    rounds = range(1 if quick else max(step.rounds for step in steps))
    wanted = ("floor", *systems)
    return [
        Task(step, system, number)
        for number in rounds
        for step in steps
        if number < step.rounds
        for system in wanted
        if system in step.systems and step.options(system, quick).get("n") != 0
    ]


def measure(task: Task, python: Path, quick: bool) -> dict[str, list[float]] | str:
    """Do one measurement in a fresh process; return its series, or why there are none."""
    options = json.dumps(dict(task.step.options(task.system, quick)))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "series.json"
        command = [str(python), str(ROOT / "bench" / "measure.py"), task.system, task.step.case, options, str(file)]
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            said = process.communicate(timeout=_LIMIT)[1]
        except subprocess.TimeoutExpired:
            said = f"took more than {_LIMIT} s"
        finally:
            # Whatever a system leaves behind must not disturb the next one, and some have left its process group.
            left = memory.below(process.pid) if process.poll() is None else []
            for kill, number in ((os.killpg, process.pid), *((os.kill, pid) for pid in left)):
                try:
                    kill(number, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            process.wait()
        if not file.exists():
            return said.strip().splitlines()[-1] if said.strip() else f"status {process.returncode}"
        series: dict[str, list[float]] = json.loads(file.read_text())
        return series


def run(todo: Sequence[Task], pythons: dict[str, Path], quick: bool, patience: float) -> tuple[Results, list[str], int]:
    """Do all measurements, with a line for each; return results, what failed, and how many began on a busy machine."""
    results: Results = {}
    disturbed = 0
    failures: list[str] = []
    began = time.monotonic()
    for number, task in enumerate(todo, 1):
        clock = int(time.monotonic() - began)
        name = f"{task.step.name}, {TITLES.get(task.system, task.system)}, round {task.round + 1}"
        print(f"[{number:3}/{len(todo)}] {clock // 60}:{clock % 60:02}  {name} … ", end="", flush=True)
        try:
            disturbed += not quiet.wait(patience)
            series = measure(task, pythons[task.system], quick)
        except KeyboardInterrupt:
            failures.append(f"stopped by hand after {number - 1} of {len(todo)} measurements")
            break
        if isinstance(series, str):
            failures.append(f"{name}: {series}")
            print(f"failed: {series}", flush=True)
            continue
        results.setdefault(task.step.name, {}).setdefault(task.system, []).append(series)
        print(_brief(series), flush=True)
    return results, failures, disturbed


def _brief(series: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {report.number(sorted(samples)[len(samples) // 2])}" for name, samples in series.items())


def main() -> None:
    """Do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run; writes nothing unless --out is given")
    parser.add_argument("--only", action="append", default=[], choices=[step.name for step in STEPS], metavar="NAME")
    parser.add_argument("--system", action="append", default=[], choices=NAMES, help="measure only these")
    parser.add_argument("--patience", type=float, default=2, help="seconds to wait for a quiet machine each time")
    parser.add_argument("--out", type=Path, help="folder for latest.json and the chart")
    options = parser.parse_args()
    systems = options.system or NAMES
    pythons = dict.fromkeys(("floor", "cellblock"), Path(sys.executable))
    facts: dict[str, Any] = {"machine": report.machine(), "quick": options.quick}
    if set(systems) != {"cellblock"}:
        pythons |= dict.fromkeys(("ipybox", "kernelbox", "jupyter"), peers.python())
        facts["versions"] = peers.versions(pythons["jupyter"], _PACKAGES)
    todo = tasks(options.only, systems, options.quick)
    results, failures, disturbed = run(todo, pythons, options.quick, options.patience)
    found, floor = rows(FIGURES, results, NAMES), rows(FLOOR, results, ("floor",))
    tables = "\n\n".join(
        [
            report.table(found),
            report.floor_table(floor),
            f"{disturbed} of {len(todo)} measurements began while the machine was busy with something else.",
        ]
    )
    print(f"\n{tables}\n")
    for failure in failures:
        print(f"failed: {failure}")
    whole = not (options.quick or options.only or options.system)
    if whole or options.out:
        folder = options.out or ROOT / "bench" / "results"
        chart = folder / "performance.png" if options.out else ROOT / "docs" / "performance.png"
        report.write_json(
            folder / "latest.json",
            {**facts, "measurements": len(todo), "disturbed": disturbed, "failures": failures},
            found,
            floor,
        )
        report.draw(chart, facts, found)
        if not options.out:
            report.insert(ROOT / "docs" / "performance.md", tables)
        print(f"written: {os.path.relpath(folder / 'latest.json')}, {os.path.relpath(chart)}")


if __name__ == "__main__":
    main()
