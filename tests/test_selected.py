"""What runs again elsewhere in CI: the lists in .ci/selected name tests that exist, and leave none out by oversight."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LISTS = ROOT / ".ci" / "selected"
NAMES = sorted(path.name for path in LISTS.iterdir() if path.name != "read")

_USER = re.compile(r"\bgete?uid\(|nothing is forbidden to root")
_PYTHON = re.compile(r"\bsys\.version_info\b")
ELSEWHERE = {
    "tests/escape/test_mutants.py": "slow, and the same for everybody",
    "tests/test_selected.py": "is about the lists",
    "tests/fork/libraries.py": "a table, which tests/fork uses",
}
"""Tests that name users or versions, but need not run again"""


def selected(name: str) -> list[str]:
    """Return the paths in a list, as the scripts read them."""
    return subprocess.run([LISTS / "read", name], capture_output=True, text=True, check=True).stdout.split()


@functools.cache
def texts() -> dict[Path, str]:
    """Return the files of tests and what they contain."""
    return {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))}


def missing(pattern: re.Pattern[str], name: str) -> list[str]:
    """Return files of tests that a pattern is found in, and that a list leaves out."""
    listed = [ROOT / path for path in selected(name)]
    return [
        str(path.relative_to(ROOT))
        for path, text in texts().items()
        if pattern.search(text)
        and not any(path.is_relative_to(place) for place in listed)
        and str(path.relative_to(ROOT)) not in ELSEWHERE
    ]


def test_what_is_listed_exists_once_and_in_order() -> None:
    for name in NAMES:
        paths = selected(name)
        assert paths == sorted({*paths})
        assert [path for path in paths if not (ROOT / path).exists()] == []
        assert not [path for path in paths if any(str(parent) in paths for parent in Path(path).parents)]


def test_whatever_asks_who_the_user_is_runs_as_another() -> None:
    assert missing(_USER, "user") == []


def test_whatever_asks_for_the_version_of_python_runs_on_others() -> None:
    for name in ("newest-python", "other-python"):
        assert missing(_PYTHON, name) == []


def test_the_newest_python_runs_whatever_a_version_between_runs() -> None:
    newest = [ROOT / path for path in selected("newest-python")]
    assert [
        path for path in selected("other-python") if not any((ROOT / path).is_relative_to(place) for place in newest)
    ] == []


def test_tests_without_another_mark_are_quick(request: pytest.FixtureRequest) -> None:
    marks = {item.nodeid: {mark.name for mark in item.iter_markers()} for item in request.session.items}
    assert "quick" in marks[request.node.nodeid]
    others = {"slow", "srt", "npm", "clients", "ray"}
    assert [name for name, found in marks.items() if ("quick" in found) is bool(found & others)] == []
