"""Measures cellblock and its peers in one run, in turns, and writes a table, a JSON file and a chart.

python bench/run.py              everything, in about ten minutes
python bench/run.py --quick      a look, in about one: too few samples to quote
python bench/run.py --only sandbox --rounds 1
python bench/run.py --only "round trip" --only floor

A run of a part puts its figures in the place of older ones, with their date; a run of everything begins anew.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":  # and not where tests import it, whose own entry this would overwrite
    sys.path[0] = str(ROOT)

from bench import memory, peers, quiet, report  # noqa: E402
from bench.figures import FIGURES, FLOOR, Results, merged, rows, values, values_of  # noqa: E402
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


def tasks(only: Sequence[str], systems: Sequence[str], quick: bool, rounds: int | None = None) -> list[Task]:
    """Return all measurements in order: rounds of steps of systems, so that a change of the machine hits all alike.

    Args:
        only: Names of steps, or of parts; none for all.
        systems: Which to measure.
        quick: Whether it is a short run, of one round.
        rounds: How many there are to be; None for what each step says.
    """
    steps = [step for step in STEPS if not only or {step.name, step.part} & set(only)]
    if quick or rounds:
        steps = [replace(step, rounds=rounds or 1) for step in steps]
    wanted = ("floor", *systems)
    return [
        Task(step, system, number)
        for number in range(max(step.rounds for step in steps))
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


def added(older: Mapping[str, Any], facts: dict[str, Any], results: Results, run: dict[str, Any]) -> dict[str, Any]:
    """Return what was written down before, with a run of a part in the place of what it has measured anew.

    Args:
        older: From `report.read`.
        facts: Of the machine and its packages, now.
        results: Of the run.
        run: What the page says of it: ``date``, ``part``, ``measurements``, ``disturbed``, ``failures``.
    """
    found = merged(values_of(older["figures"]), values(FIGURES, results, run["date"]))
    floor = merged(values_of(older["floor"]), values(FLOOR, results, run["date"]))
    return {
        **{name: older[name] for name in ("machine", "versions") if name in older},
        **facts,
        "runs": [*(earlier for earlier in older["runs"] if earlier["part"] != run["part"]), run],
        "figures": [row.to_dict() for row in rows(FIGURES, found, NAMES)],
        "floor": [row.to_dict() for row in rows(FLOOR, floor, ("floor",))],
    }


def main() -> None:
    """Do it."""
    options = _options()
    folder = options.out or ROOT / "bench" / "results"
    file, chart = folder / "latest.json", (options.out or ROOT / "docs") / "performance.png"
    whole = not (options.only or options.system or options.report)
    data = dict(report.NOTHING) if whole else report.read(file)
    if options.report:
        print(report.tables(data))
    else:
        machine = report.machine()
        if data.get("machine", machine) != machine:
            sys.exit(f"{file} is of another machine or Python: measure everything, or write elsewhere, with --out")
        facts, results, done = _measured(options)
        facts["machine"] = machine
        print(f"\n{report.tables(added(report.NOTHING, facts, results, done))}\n")
        if options.quick and not options.out:
            return
        data = added(data, facts, results, done)
        report.write(file, data)
    report.draw(chart, data["machine"], report.own(data))
    if not options.out:
        page = ROOT / "docs" / "performance.md"
        report.insert(page, report.short_table(report.own(data), report.DEFAULT), "default")
        report.insert(page, report.short_table(report.own(data), report.PEERS), "peers")
    print(f"written: {os.path.relpath(file)}, {os.path.relpath(chart)}")


def _measured(options: argparse.Namespace) -> tuple[dict[str, Any], Results, dict[str, Any]]:
    todo = tasks(options.only, options.system or NAMES, options.quick, options.rounds)
    facts: dict[str, Any] = {}
    pythons = dict.fromkeys(("floor", "cellblock"), Path(sys.executable))
    if {task.system for task in todo} - set(pythons):
        pythons |= dict.fromkeys(("ipybox", "kernelbox", "jupyter"), peers.python())
        facts["versions"] = peers.versions(pythons["jupyter"], _PACKAGES)
    results, failures, disturbed = run(todo, pythons, options.quick, options.patience)
    part = ", ".join([*options.only, *options.system]) or "everything"
    done = {
        "date": datetime.now(UTC).date().isoformat(),
        "part": f"{part}, a short look" if options.quick else part,
        "measurements": len(todo),
        "disturbed": disturbed,
        "failures": failures,
    }
    return facts, results, done


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(dict.fromkeys(name for step in STEPS for name in (step.part, step.name)))
    parser.add_argument("--quick", action="store_true", help="a short run; writes nothing unless --out is given")
    parser.add_argument(
        "--only", action="append", default=[], choices=names, metavar="NAME", help=f"measure only these: {', '.join(names)}"
    )
    parser.add_argument("--system", action="append", default=[], choices=NAMES, help="measure only these")
    parser.add_argument("--rounds", type=int, help="how often each is measured, instead of once to three times")
    parser.add_argument("--patience", type=float, default=2, help="seconds to wait for a quiet machine each time")
    parser.add_argument("--out", type=Path, help="folder for latest.json and the chart")
    parser.add_argument("--report", action="store_true", help="measure nothing; show again what was written down")
    return parser.parse_args()


if __name__ == "__main__":
    main()
