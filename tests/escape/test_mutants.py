"""As in test_mutations.py, for defences that have tests of their own: switched off in a copy of the package, the test goes red.

Each test is run by a pytest of its own, on the copy. That all of them pass on a copy that nobody has changed is a test, too.
Where something has more than one line of defence, all of them are switched off: mutants.toml names each.

`make mutants` runs all of them, before a release and at night. `make slow` runs a sample, another one each day.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from suite import SEED, SUMMARY, is_whole, selection

from .copies import Edit, copied, environment

pytestmark = [pytest.mark.slow, pytest.mark.sampled(1), pytest.mark.timeout(240)]

TESTS = Path(__file__).parents[1]
PART = 40
"""How many tests are run at once on a copy that is not changed."""
SAMPLE = 12
"""How many mutants `make slow` runs."""
TABLE = Path(__file__).with_name("mutants.toml")
SECONDS = 6
"""Without their defence some attacks never end, or only at a deadline: after how long their tests are cut off."""


class Mutant(NamedTuple):
    """A test, and the defences without which it must fail.

    Attributes:
        test: The path of the test, from tests/ on.
        edits: What the defences are replaced by.
        endless: Whether the test never ends without them, or only at a deadline: it is cut off then.
    """

    test: str
    edits: tuple[Edit, ...]
    endless: bool


def _read_table() -> dict[str, Mutant]:
    """Return the rows of mutants.toml by name."""
    rows: dict[str, Mutant] = {}
    tables: dict[str, dict[str, list[str]]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    for file, tests in tables.items():
        for name, (test, *changes) in tests.items():
            assert name not in rows, f"two mutants have the name {name!r}"
            edits = tuple(_edit(*one) for one in zip(changes[::2], changes[1::2], strict=False))
            rows[name] = Mutant(f"{file}::test_{test}", edits, endless=len(changes) % 2 == 1)
    return rows


def _edit(place: str, new: str) -> Edit:
    file, _, name = place.partition(":")
    return Edit(file, name, new)


MUTANTS = _read_table()

# Where a test runs in both sandboxes that are ours, the native one is what the mutation is about.
NATIVE = ("-k", "not (landlock- or landlock])")
OPTIONS = (*NATIVE, "-v", "-n", "0", "-x", "-p", "no:cacheprovider", f"--rootdir={TESTS.parent}", "--tb=short")
# The server has imported plugins before pytest could rewrite their asserts.
UNREWRITTEN = ("-W", "ignore::pytest.PytestAssertRewriteWarning")

Run = Callable[..., Awaitable[tuple[int | None, str]]]


@pytest.fixture(scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Run]:
    """Return a function that runs tests with a copy of the package, and returns pytest's exit status and what it said.

    The status is None if it took too long and was cut off.
    """
    server = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(__file__).with_name("pytest_server.py")),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=TESTS.parent,
    )  # fmt: skip
    assert server.stdin
    assert server.stdout
    requests, answers = server.stdin, server.stdout

    async def run(package: Path, *tests: str, seconds: int) -> tuple[int | None, str]:
        output = tmp_path_factory.mktemp("output") / "said"
        request = {
            "arguments": [*OPTIONS, *UNREWRITTEN, *(f"{TESTS}/{test}" for test in tests)],
            "environment": environment(package),
            "output": str(output),
            "seconds": seconds,
        }
        requests.write(json.dumps(request).encode() + b"\n")
        status = json.loads(await answers.readline())
        return status, output.read_text(errors="replace")

    yield run
    requests.close()
    await server.wait()


def _chosen(config: pytest.Config) -> list[str]:
    """Return which mutants run: all, a sample, or those that somebody names."""
    if is_whole(config) or not selection["slow"]:
        return [*MUTANTS]
    return sorted(random.Random(os.environ[SEED]).sample(sorted(MUTANTS), SAMPLE))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make tests of the mutants that run."""
    runs = _chosen(metafunc.config)
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", runs)
    if "tests" in metafunc.fixturenames:
        tests = sorted({MUTANTS[name].test for name in runs})
        parts = [tests[start : start + PART] for start in range(0, len(tests), PART)]
        metafunc.parametrize("tests", parts, ids=map(str, range(len(parts))))


async def test_the_tests_pass_on_a_copy_that_is_not_changed(
    tmp_path: Path, run: Run, tests: list[str], record_property: Callable[[str, object], None]
) -> None:
    record_property(SUMMARY, f"{len(tests)} tests of mutants, of which there are {len(MUTANTS)} ({SEED}={os.environ[SEED]})")
    status, said = await run(copied(tmp_path / "package"), *tests, seconds=200)
    assert status == 0, said


async def test_a_test_fails_without_its_defence(tmp_path: Path, run: Run, name: str) -> None:
    row = MUTANTS[name]
    package = copied(tmp_path / "package", *row.edits)
    status, said = await run(package, row.test, seconds=SECONDS if row.endless else 100)
    # 1: tests failed. All else is a mistake here: no such test (4), none left (5), a module that cannot be loaded (2).
    begun = f"::{row.test.partition('::')[2]}" in said
    assert status == 1 or (status is None and row.endless and begun), said
    assert "SyntaxError" not in said, said
