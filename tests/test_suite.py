"""Which tests a day's run leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from suite import SHARE, not_sampled

DAYS = [f"2026-{month:02}-{day:02}" for month in range(9, 13) for day in range(1, 31)]


class Item:
    """A collected test, as the sample sees it."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid = nodeid
        self._marks = {mark.name: mark.mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._marks.get(name)


def variants(test: str, count: int, *marks: pytest.MarkDecorator) -> list[Any]:
    return [Item(f"{test}[{number}]", *marks) for number in range(count)]


def run_on(day: str, items: Sequence[Any]) -> list[Any]:
    left_out = not_sampled(items, day)
    return [item for item in items if item not in left_out]


@pytest.mark.parametrize(
    ("marks", "share"),
    [
        ([pytest.mark.slow], 12),
        ([pytest.mark.slow, pytest.mark.sampled(2)], 2),
        ([pytest.mark.clients], 2),
        ([pytest.mark.clients, pytest.mark.sampled(4)], 4),
        ([pytest.mark.sampled(4)], 1),
    ],
)
def test_each_day_runs_other_variants(marks: list[pytest.MarkDecorator], share: int) -> None:
    items = variants("tests/host/test_host.py::test_it", 24, *marks)
    days = [run_on(day, items) for day in DAYS]
    assert {len(found) for found in days} == {24 // share}
    assert {item for found in days for item in found} == {*items}


def test_a_test_without_variants_runs_on_some_days() -> None:
    items = variants("tests/host/test_host.py::test_it", 1, pytest.mark.slow, pytest.mark.sampled(2))
    assert {len(run_on(day, items)) for day in DAYS} == {0, 1}


def test_a_variant_of_each_attack_runs_every_day() -> None:
    attack = "tests/escape/test_files.py::test_it"
    assert {len(run_on(day, variants(attack, 8, pytest.mark.slow))) for day in DAYS} == {4}
    assert {len(run_on(day, variants(attack, 2, pytest.mark.slow, pytest.mark.sampled(8)))) for day in DAYS} == {1}


def test_a_variable_has_the_share_of_quick_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHARE, "4")
    assert {len(run_on(day, variants("tests/host/test_host.py::test_it", 16))) for day in DAYS} == {4}
