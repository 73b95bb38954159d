"""Each row of the tables of mutations names something that exists, and what it puts there is Python that knows its names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .copies import SOURCE, edited
from .test_mutants import MUTANTS
from .test_mutations import CODE
from .test_programs import CHANGES

EDITS = [
    *(edit for row in MUTANTS.values() for edit in row.edits),
    *(row.edit for row in CODE.values()),
    *(row.edit for row in CHANGES.values()),
]


@pytest.mark.slow
@pytest.mark.sampled(1)
def test_every_mutation_names_something_and_knows_the_names_that_it_uses(tmp_path: Path) -> None:
    for number, edit in enumerate(sorted({*EDITS})):
        old = (SOURCE / edit.file).read_text()
        new = edited(old, edit)
        assert new.split() != old.split(), edit
        (tmp_path / f"{number} {Path(edit.file).name}").write_text(new)
    undefined = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select=F821"]
    undefined += ["--output-format=concise", str(tmp_path)]
    found = subprocess.run(undefined, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_the_test_of_every_mutation_exists() -> None:
    tests = SOURCE.parents[1] / "tests"
    missing = []
    for row, mutant in MUTANTS.items():
        file, *_, name = mutant.test.partition("[")[0].split("::")
        path = tests / file
        if not path.is_file() or f"def {name}(" not in path.read_text(encoding="utf-8"):
            missing.append(f"{row}: {mutant.test}")
    assert not missing


@pytest.mark.slow
@pytest.mark.sampled(1)
def test_the_variant_of_every_mutation_exists() -> None:
    root = SOURCE.parents[1]
    tests = sorted({f"{root}/tests/{mutant.test}" for mutant in MUTANTS.values()})
    collecting = [sys.executable, "-m", "pytest", "--quiet", "--whole", "--collect-only", *tests]
    found = subprocess.run(collecting, cwd=root, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
