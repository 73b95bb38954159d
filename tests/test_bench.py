"""The bench's own code: what it plans, works out and writes. Nothing here depends on how fast anything is."""

from __future__ import annotations

import inspect
import json
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from bench import report, run, soak  # noqa: E402
from bench.figures import FIGURES, Figure, Results, Row, Value, rows, values  # noqa: E402
from bench.steps import STEPS  # noqa: E402
from bench.systems import NAMES  # noqa: E402

COST = Figure("a cost", "step", "ms", "p50", "ms", 2, times={"ipybox": 10.0}, chart=True)


SANDBOXED = [step.name for step in STEPS if step.part == "sandbox" and step.case != "sandbox.srt"]
TOOLS = [step.name for step in STEPS if step.part == "tools" and step.case != "tools.generate"]


def judged(results: Results) -> list[Row]:
    return rows([COST], values([COST], results, "2026-11-21"), NAMES)


def done(part: str, date: str) -> dict[str, Any]:
    return {"date": date, "part": part, "measurements": 2, "disturbed": 1, "failures": []}


def test_every_figure_is_measured_by_a_step() -> None:
    steps = {step.name: step for step in STEPS}
    for figure in FIGURES:
        assert "cellblock" in steps[figure.step].systems
        assert set(figure.times) <= set(steps[figure.step].systems)


def test_every_step_names_a_case_and_known_systems() -> None:
    for step in STEPS:
        module, function = step.case.split(".")
        assert inspect.iscoroutinefunction(getattr(import_module(f"bench.{module}"), function)) == (
            "floor" not in step.systems
        )
        assert set(step.systems) <= {*NAMES, "floor"}


@pytest.mark.parametrize(
    ("own", "peer", "met"), [(1.0, 20.0, True), (1.0, 5.0, False), (3.0, 90.0, False)], ids=["met", "ratio", "target"]
)
def test_a_figure_is_met_when_target_and_ratio_are(own: float, peer: float, met: bool) -> None:
    results = {"step": {"cellblock": [{"ms": [own]}], "ipybox": [{"ms": [peer]}]}}
    (row,) = judged(results)
    assert row.met is met
    assert row.times == {"ipybox": peer / own}


def test_the_table_shows_what_is_missed() -> None:
    results = {"step": {"cellblock": [{"ms": [3.0]}, {"ms": [5.0]}], "ipybox": [{"ms": [100.0]}]}}
    shown = report.table(judged(results))
    assert "| a cost | ms | ≤ 2 | 4 | 3 … 5 | **no** | 100 (25×), wanted 10× |" in shown


def test_a_part_takes_the_place_of_what_it_has_measured_anew(tmp_path: Path) -> None:
    file = tmp_path / "latest.json"
    first: Results = {
        "create": {"cellblock": [{"ms": [9.0]}], "ipybox": [{"ms": [3600.0]}]},
        "import": {"cellblock": [{"ms": [5.0]}]},
    }
    facts = {"machine": report.machine(), "versions": {"ipybox": "1"}}
    report.write(file, run.added(report.NOTHING, facts, first, done("everything", "2026-01-01")))
    second: Results = {"create": {"cellblock": [{"ms": [6.0]}, {"ms": [7.0]}]}}
    for date in ("2026-01-02", "2026-01-03"):
        report.write(file, run.added(report.read(file), {"machine": report.machine()}, second, done("create", date)))
    data = json.loads(file.read_text())
    own = {row.figure.title: row for row in report.own(data)}
    created = own["new kernel to first result, p50"]
    assert created.values["cellblock"] == Value(6.5, 6.0, 7.0, 2, "2026-01-03")
    assert created.values["ipybox"] == Value(3600.0, 3600.0, 3600.0, 1, "2026-01-01")
    assert created.met is True
    assert own["import, over bare Python"].values["cellblock"].date == "2026-01-01"
    assert [(one["part"], one["date"]) for one in data["runs"]] == [("everything", "2026-01-01"), ("create", "2026-01-03")]
    assert data["versions"] == {"ipybox": "1"}
    assert "- 2026-01-03, create: 1 of 2 measurements began while the machine was busy" in report.tables(data)


def test_the_page_shows_what_was_written_down() -> None:
    data = report.read(ROOT / "bench" / "results" / "latest.json")
    page = (ROOT / "docs" / "performance.md").read_text()
    assert report.short_table(report.own(data), report.DEFAULT) in page
    assert report.short_table(report.own(data), report.PEERS) in page


@pytest.mark.parametrize("title", [*report.DEFAULT, *report.PEERS])
def test_each_row_of_the_page_is_one_figure_with_a_value(title: str) -> None:
    assert [figure.title for figure in FIGURES].count(title) == 1
    (row,) = [row for row in report.own(report.read(ROOT / "bench" / "results" / "latest.json")) if row.figure.title == title]
    assert "cellblock" in row.values


@pytest.mark.slow
def test_a_chart_is_drawn(tmp_path: Path) -> None:
    results = {"step": {"cellblock": [{"ms": [1.0]}], "ipybox": [{"ms": [0.0]}]}}
    arguments = pickle.dumps((tmp_path / "chart.png", report.machine(), judged(results)))
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


def test_a_soak_sees_what_is_lost_doubled_or_out_of_order() -> None:
    cases: list[tuple[list[tuple[int, int, int]], list[int], str]] = [
        ([(0, 10, 1), (1, 11, 2), (0, 12, 3)], [10, 11, 12], ""),
        ([(0, 10, 1), (1, 11, 2)], [10, 11, 12], "other cells than were answered"),  # one ran, and its answer was lost
        ([(0, 10, 1), (1, 11, 3)], [10, 11, 11], "has run"),  # one ran twice
        ([(0, 10, 1), (1, 11, 2)], [11, 10], "other cells than were answered, or in another order"),
        ([(0, 10, 2), (0, 12, 1)], [12, 10], "cells of client 0 in another order"),
        ([], [], ""),
    ]
    for answers, seen, wrong in cases:
        found = [*soak.compare(0, [soak.Answer(*answer) for answer in answers], soak.digest(seen))]
        assert bool(found) == bool(wrong)
        assert any(wrong in one for one in found) or not wrong


@pytest.mark.slow
async def test_a_soak_gives_numbers(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "workspace").mkdir()
    with soak.served(tmp_path / "home", tmp_path / "workspace") as (port, gateway):
        soaked = await soak.soak(port, tmp_path / "home", gateway, 3, 2, 4)
    assert soaked["wrong"] == []
    assert soaked["executions"] > 4
    assert "nothing was lost, doubled or out of order" in soak.table(soaked)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["create", "round trip", "idle, 20 alive", "rate, 4 at once", "import", *SANDBOXED, *TOOLS])
@pytest.mark.sampled(3)
def test_a_measurement_gives_numbers(name: str) -> None:
    (task,) = run.tasks([name], ["cellblock"], quick=True)
    series = run.measure(task, Path(sys.executable), quick=True)
    assert isinstance(series, dict), series
    assert all(samples and all(isinstance(sample, float) for sample in samples) for samples in series.values())


@pytest.mark.slow
@pytest.mark.srt
def test_srt_is_measured() -> None:
    (task,) = run.tasks(["sandbox: srt"], ["cellblock"], quick=True)
    series = run.measure(task, Path(sys.executable), quick=True)
    assert isinstance(series, dict), series
    assert len(series["first"]) == 1
    assert len(series["next"]) == 3


@pytest.mark.slow
def test_a_failing_measurement_says_why() -> None:
    (task,) = run.tasks(["create"], ["ipybox"], quick=True)
    said = run.measure(task, Path(sys.executable), quick=True)
    assert isinstance(said, str)
    assert "ipybox" in said
