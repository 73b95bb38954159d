"""Each row of the tables of mutations names something that exists, and what it puts there is Python that knows its names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .copies import SOURCE, Edit, edited
from .test_mutants import MUTANTS
from .test_mutations import CODE
from .test_programs import CHANGES

EDITS = [
    *(edit for row in MUTANTS.values() for edit in row.edits),
    *(row.edit for row in CODE.values()),
    *(row.edit for row in CHANGES.values()),
]

MODULE = '''
LIMIT: int = 3  # three
NAMES = ("a", "ä")

class Host:
    async def close(self) -> None:
        """Close it."""
        for name in NAMES:
            await self.end(name)  # one after the other

'''


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


@pytest.mark.parametrize(
    ("name", "new", "line"),
    [
        ("LIMIT", "4", "LIMIT: int = (4)  # three"),
        ("NAMES", "()", "NAMES = (())"),
        ("Host.close", "pass", "        pass  # one after the other"),
    ],
)
def test_a_body_or_a_value_is_replaced(name: str, new: str, line: str) -> None:
    assert line in edited(MODULE, Edit("host.py", name, new)).splitlines()


@pytest.mark.parametrize("name", ["close", "Host", "Host.start", "Host.close.name", "limit"])
def test_a_name_that_is_not_there_is_an_error(name: str) -> None:
    with pytest.raises(LookupError, match=f"host.py defines {name} 0 times"):
        edited(MODULE, Edit("host.py", name, "pass"))
