"""The table of slow tests in docs/testing.md is about the files that have some."""

from __future__ import annotations

from pathlib import Path

import pytest

import slow_tests

AGAIN = "run `.venv/bin/python tests/slow_tests.py`"


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Nothing is started here, so that there is nothing to watch."""


def test_every_file_with_slow_tests_is_in_the_table() -> None:
    marked = {
        str(path.relative_to(slow_tests.TESTS))
        for path in slow_tests.TESTS.rglob("test_*.py")
        if "mark.slow" in path.read_text(encoding="utf-8") and path.name != Path(__file__).name
    }
    assert marked - slow_tests.rows().keys() == set(), AGAIN


def test_the_table_says_what_the_files_say() -> None:
    page = slow_tests.PAGE.read_text()
    wrong = [
        name
        for name in slow_tests.rows()
        if not (slow_tests.TESTS / name).is_file() or f" | {slow_tests.purpose(name)} |" not in page
    ]
    assert wrong == [], AGAIN


def test_times_are_added_up_by_file(tmp_path: Path) -> None:
    report = tmp_path / "times.jsonl"
    report.write_text(
        '["tests/cli/test_one.py::a", 1.5]\n["tests/cli/test_one.py::b[x::y]", 2]\n["tests/cli/test_two.py::a", 3]\n'
    )
    assert slow_tests.timed(str(report)) == {"cli/test_one.py": 3.5, "cli/test_two.py": 3.0}
