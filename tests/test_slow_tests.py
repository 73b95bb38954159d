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
    cases = "".join(
        f'<testcase classname="tests.cli.test_{name}" name="t" time="{time}"/>'
        for name, time in (("a", 1.5), ("a", 2), ("b", 1))
    )
    report = tmp_path / "slow.xml"
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert slow_tests.timed(str(report)) == {"cli/test_a.py": 3.5, "cli/test_b.py": 1.0}
