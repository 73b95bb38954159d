"""What was proved before counts as long as what decides about it is the same, and no longer."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from . import proofs
from .copies import SOURCE, Edit

CONFTEST = '''
import pytest

@pytest.fixture
def wall():
    return height()

@pytest.fixture(autouse=True)
def watch():
    """Watch."""

def height():
    return 3

@pytest.fixture
def other():
    return 4
'''
HELPERS = """
def climb(wall):
    return wall < LIMIT

LIMIT = 2
UNUSED = 1
"""
TEST = '''
from helpers import climb

PROGRAM = "attack.py"

def test_nobody_climbs(wall):
    """Somebody tries."""
    assert not climb(wall), PROGRAM

def test_another(other):
    assert other
'''
EDITS = (Edit("common/threads.py", "in_thread", "pass"),)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Nothing is started here, so that there is nothing to watch."""


@pytest.fixture
def tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of tests."""
    for name, text in {
        "conftest.py": CONFTEST, "helpers.py": HELPERS, "room/test_wall.py": TEST, "room/attack.py": "print(1)\n",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(proofs, "_how_tests_run", lambda: "")
    monkeypatch.setattr(proofs, "TESTS", tmp_path)
    _forget()
    return tmp_path


def _forget() -> None:
    for cached in (
        proofs._module,
        proofs._words,
        proofs._called,
        proofs._fixtures,
        proofs._files,
        proofs._definition,
        proofs._whole,
    ):
        cached.cache_clear()


@pytest.fixture(autouse=True)
def forget() -> Any:
    """Nothing that one test has read is another's."""
    yield
    _forget()


def digest(tests: Path) -> str:
    _forget()
    (path,) = tests.rglob("test_wall.py")
    return proofs.digest(f"{path.relative_to(tests)}::test_nobody_climbs", EDITS)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("room/test_wall.py", "assert not climb", "assert climb"),
        ("helpers.py", "wall < LIMIT", "wall <= LIMIT"),
        ("helpers.py", "LIMIT = 2", "LIMIT = 9"),
        ("conftest.py", "return height()", "return height() + 1"),
        ("conftest.py", "return 3", "return 1"),
        ("conftest.py", '"""Watch."""', "print()"),
        ("room/attack.py", "1", "2"),
    ],
)
def test_what_a_test_reaches_decides(tests: Path, file: str, old: str, new: str) -> None:
    before = digest(tests)
    text = (tests / file).read_text()
    assert old in text
    (tests / file).write_text(text.replace(old, new))
    assert digest(tests) != before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("room/test_wall.py", "assert other", "assert other == 4"),
        ("room/test_wall.py", "def test_nobody", "# a comment\ndef test_nobody"),
        ("room/test_wall.py", '"""Somebody tries."""', '"""Tries."""'),
        ("helpers.py", "UNUSED = 1", "UNUSED = 2"),
        ("conftest.py", "return 4", "return 5"),
    ],
)
def test_what_it_does_not_reach_does_not_decide(tests: Path, file: str, old: str, new: str) -> None:
    before = digest(tests)
    text = (tests / file).read_text()
    assert old in text
    (tests / file).write_text(text.replace(old, new))
    assert digest(tests) == before


def test_directories_do_not_decide(tests: Path) -> None:
    before = digest(tests)
    (tests / "room").rename(tests / "district")
    assert digest(tests) == before


def test_the_row_and_the_module_decide(tests: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tests / "package"
    monkeypatch.setattr(proofs, "SOURCE", package)
    found = []
    for place, text, new in (
        ("a", "import os\ndef f():\n    return 1\n", "pass"),
        ("b", '"""A module."""\nfrom x import os\n\ndef f():\n    # a comment\n    return 1\n', " pass  # moved"),
        ("b", "import os\ndef f():\n    return 2\n", "pass"),
        ("b", "import sys\ndef f():\n    return 1\n", "pass"),
        ("b", "import os\ndef f():\n    return 1\n", "return 0"),
    ):
        _forget()
        (package / place).mkdir(parents=True, exist_ok=True)
        (package / place / "m.py").write_text(text)
        found.append(proofs.digest("room/test_wall.py::test_nobody_climbs", [Edit(f"{place}/m.py", "f", new)]))
    assert found[0] == found[1]
    assert len({*found}) == 4
    assert proofs.digest("room/test_wall.py::test_nobody_climbs[x]", [Edit("b/m.py", "f", "pass")]) not in found


def test_modules_that_texts_name_may_move() -> None:
    old, new, other = (
        proofs.said(ast.parse(f"patch('cellblock.{name}', 1)"))
        for name in ("host.launch.start.begin", "engine.start.begin", "host.launch.start.end")
    )
    assert old == new != other


def test_every_module_of_the_package_can_be_said() -> None:
    assert len({proofs._whole(path) for path in SOURCE.glob("host/*.py")}) == len([*SOURCE.glob("host/*.py")])


def test_what_was_proved_runs_as_a_sample_only(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {f"{number}": f"digest {number}" for number in range(100)}
    monkeypatch.setattr(proofs, "read", lambda: {**digests, "7": "an old one", "gone": "x"})
    new, some, every = (proofs.planned(digests, which, "monday") for which in ("new", "some", "all"))
    assert new.runs == ["7"]
    assert new.gone == {"gone"}
    assert every.runs == sorted(digests)
    assert len(some.runs) == 1 + proofs.SAMPLE
    assert some == proofs.planned(digests, "some", "monday")
    assert {*some.sample} != {*proofs.planned(digests, "some", "tuesday").sample}


def _report(outcome: str, *properties: tuple[str, object]) -> Any:
    return SimpleNamespace(when="call", passed=outcome == "passed", user_properties=properties)


def test_a_mutant_is_recorded_if_its_test_passes_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from .test_mutants import MUTANTS

    record = tmp_path / "proved.txt"
    monkeypatch.setattr(proofs, "RECORD", record)
    first, second, third = [*MUTANTS][:3]
    proofs.write({first: "old", second: "old", "no mutant any more": "old"})
    recorder = proofs.Recorder()
    recorder.pytest_runtest_logreport(_report("passed", (proofs.PROVED, (first, "one", "new"))))
    recorder.pytest_runtest_logreport(_report("passed", (proofs.PROVED, (second, "another", "new"))))
    recorder.pytest_runtest_logreport(_report("failed", (proofs.PROVED, (third, "one", "new"))))
    recorder.pytest_runtest_logreport(_report("passed", (proofs.UNCHANGED, ["one"])))
    recorder.pytest_sessionfinish()
    assert proofs.read() == {first: "new", second: "old"}
    lines = record.read_text().splitlines()
    assert [line.partition(" ")[2] for line in lines] == sorted([first, second])


def test_the_record_has_one_sorted_line_for_each() -> None:
    assert [*proofs.read()] == sorted({*proofs.read()})
