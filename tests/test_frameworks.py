"""Adapters, their extras, their suites and the page about them speak of the same frameworks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from frameworks import run

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
HELPERS = {"__init__", "code_sandboxes_results", "openai_terminals", "adapter_session", "verifiers_processes"}


def padded(version: str) -> list[int]:
    """Return a version as numbers, as many for each."""
    return [int(part) for part in [*version.split("."), "0", "0"][:3]]


def test_each_adapter_has_a_suite_and_a_row() -> None:
    adapters = {path.stem for path in (ROOT / "src" / "cellblock" / "adapters").glob("*.py")} - HELPERS
    suites = {path.stem.removeprefix("suite_") for path in run.HERE.glob("suite_*.py")}
    rows = {framework.name.replace("-", "_") for framework in run.FRAMEWORKS}
    assert suites == rows == {*adapters, "langchain_kernelbox"}


@pytest.mark.parametrize("framework", run.FRAMEWORKS, ids=lambda framework: framework.name)
def test_the_page_and_the_extras_say_the_releases_that_are_tested(framework: run.Framework) -> None:
    versions = ", ".join(filter(None, (framework.version(release) for release in run.RELEASES)))
    assert re.search(rf"^\| `{re.escape(framework.package)}` \| {re.escape(versions)} \|", PAGE, re.MULTILINE)
    lowest = framework.version("lowest")
    if not lowest:
        assert framework.name not in EXTRAS
        return
    (requirement,) = EXTRAS[framework.name]
    package, _, floor = requirement.partition(">=")
    assert (package, padded(floor)) == (framework.package, padded(lowest))


def test_lists_of_releases_have_nothing_else() -> None:
    listed = {
        line.partition("==")[0]
        for name in ("lowest", "newest", "forced", "forced-3.12")
        for line in (run.HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    assert listed == {framework.package for framework in run.FRAMEWORKS} | {"langchain-tests"}
