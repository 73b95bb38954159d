"""The bench's own code: what it plans, works out and writes. Nothing here depends on how fast anything is."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from bench import cases, report, run  # noqa: E402
from bench.figures import FIGURES, Figure, percentile, rows  # noqa: E402
from bench.steps import STEPS  # noqa: E402
from bench.systems import NAMES  # noqa: E402

COST = Figure("a cost", "step", "ms", "p50", "ms", 2, times={"ipybox": 10.0}, chart=True)


def test_every_figure_is_measured_by_a_step() -> None:
    steps = {step.name: step for step in STEPS}
    for figure in FIGURES:
        assert "cellblock" in steps[figure.step].systems
        assert set(figure.times) <= set(steps[figure.step].systems)


def test_every_step_names_a_case_and_known_systems() -> None:
    for step in STEPS:
        assert step.case in {*cases.CASES, "floor"}
        assert set(step.systems) <= {*NAMES, "floor"}


def test_systems_take_turns_in_each_round() -> None:
    planned = run.tasks(["round trip"], NAMES, quick=False)
    assert [(task.round, task.system) for task in planned] == [(number, name) for number in range(3) for name in NAMES]


def test_percentile_of_few_samples_is_one_of_them() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([1.0], 0.5) == 1.0


@pytest.mark.parametrize(
    ("own", "peer", "met"), [(1.0, 20.0, True), (1.0, 5.0, False), (3.0, 90.0, False)], ids=["met", "ratio", "target"]
)
def test_a_figure_is_met_when_target_and_ratio_are(own: float, peer: float, met: bool) -> None:
    results = {"step": {"cellblock": [{"ms": [own]}], "ipybox": [{"ms": [peer]}]}}
    (row,) = rows([COST], results, NAMES)
    assert row.met is met
    assert row.times == {"ipybox": peer / own}


def test_the_table_shows_what_is_missed() -> None:
    results = {"step": {"cellblock": [{"ms": [3.0]}, {"ms": [5.0]}], "ipybox": [{"ms": [100.0]}]}}
    shown = report.table(rows([COST], results, NAMES))
    assert "| a cost | ms | ≤ 2 | 4 | 3 … 5 | **no** | 100 (25×), wanted 10× |" in shown


def test_json_is_written(tmp_path: Path) -> None:
    results = {"step": {"cellblock": [{"ms": [1.0]}], "ipybox": [{"ms": [100.0]}]}}
    report.write_json(tmp_path / "latest.json", {"machine": report.machine()}, rows([COST], results, NAMES), [])
    assert json.loads((tmp_path / "latest.json").read_text())["figures"][0]["met"] is True


def test_a_chart_is_drawn(tmp_path: Path) -> None:
    results = {"step": {"cellblock": [{"ms": [1.0]}], "ipybox": [{"ms": [0.0]}]}}
    arguments = pickle.dumps((tmp_path / "chart.png", {"machine": report.machine()}, rows([COST], results, NAMES)))
    # In a process of its own: matplotlib keeps the files of its fonts open.
    program = "import pickle, sys; from bench import report; report.draw(*pickle.load(sys.stdin.buffer))"
    subprocess.run([sys.executable, "-W", "error", "-c", program], input=arguments, cwd=ROOT, check=True)
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_tables_take_the_place_of_older_ones(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table -->\nold\n<!-- end -->\nafter\n")
    report.insert(page, "new")
    assert page.read_text() == "before\n<!-- table -->\nnew\n<!-- end -->\nafter\n"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="no place"):
        report.insert(page, "new")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["create", "round trip", "idle, 20 alive", "rate, 4 at once", "import"])
def test_a_measurement_gives_numbers(name: str) -> None:
    (task,) = run.tasks([name], ["cellblock"], quick=True)
    series = run.measure(task, Path(sys.executable), quick=True)
    assert isinstance(series, dict), series
    assert all(samples and all(isinstance(sample, float) for sample in samples) for samples in series.values())


@pytest.mark.slow
def test_a_failing_measurement_says_why() -> None:
    (task,) = run.tasks(["create"], ["ipybox"], quick=True)
    said = run.measure(task, Path(sys.executable), quick=True)
    assert isinstance(said, str)
    assert "ipybox" in said
