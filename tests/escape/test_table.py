"""Every attack in attacks.md has tests that exist, and a mutation; docs/threat-model.md names every attack."""

from __future__ import annotations

import re
from pathlib import Path

from .landlock import DIFFERENT
from .test_mutants import MUTANTS
from .test_mutations import CODE, DATA

ATTACKS = range(1, 74)
WITHOUT_MUTATION = {46}
"""The table says why."""

TESTS = Path(__file__).parents[1]
TABLE = Path(__file__).parent / "attacks.md"
THREAT_MODEL = TESTS.parent / "docs" / "threat-model.md"
TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
ROW = re.compile(r"\| (\d+) \| (.+) \| ([^|]+) \|")


def table() -> dict[int, list[str]]:
    """Return the tests of each attack."""
    return {int(row[1]): re.findall("`([^`]+)`", row[3]) for row in map(ROW.fullmatch, TABLE.read_text().splitlines()) if row}


def defined() -> set[str]:
    """Return the names of all tests."""
    return {name for path in TESTS.rglob("test_*.py") for name in TEST.findall(path.read_text())}


def test_every_attack_is_in_the_table() -> None:
    assert [*table()] == [*ATTACKS]


def test_every_attack_has_tests_that_exist() -> None:
    attacks = table()
    assert [number for number, names in attacks.items() if not names] == []
    assert {f"test_{name}" for names in attacks.values() for name in names} - defined() == set()


def test_every_attack_belongs_to_a_promise_of_the_threat_model() -> None:
    rows = [line.strip("| ").split(" | ") for line in THREAT_MODEL.read_text().splitlines() if line.startswith("| ")]
    cells = [row[-1] for row in rows if re.fullmatch(r"\d[\d, –]*", row[-1])]
    named = {number for cell in cells for part in cell.split(", ") for number in meant_by(part)}
    assert named == {*ATTACKS}


def meant_by(part: str) -> range:
    """Return the attacks that ``7`` or ``7–9`` means."""
    first, _, last = part.partition("–")
    return range(int(first), int(last or first) + 1)


def test_tests_that_end_differently_under_landlock_exist() -> None:
    assert {f"test_{name.partition('[')[0]}" for name in DIFFERENT} <= defined()


def test_every_attack_has_a_mutation() -> None:
    """By the numbers with which rows begin; what tests/escape/test_mutations.py says of several calls at once is for 14, too."""
    numbers = {int(name.split()[0]) for name in (*DATA, *CODE, *MUTANTS)}
    assert {*ATTACKS} - numbers == WITHOUT_MUTATION
