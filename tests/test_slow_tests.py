"""The times in the table of slow tests."""

from __future__ import annotations

from pathlib import Path

import slow_tests


def test_times_are_added_up_by_file(tmp_path: Path) -> None:
    report = tmp_path / "times.jsonl"
    report.write_text(
        '["tests/cli/test_one.py::a", 1.5]\n["tests/cli/test_one.py::b[x::y]", 2]\n["tests/cli/test_two.py::a", 3]\n'
    )
    assert slow_tests.timed(str(report)) == {"cli/test_one.py": 3.5, "cli/test_two.py": 3.0}
