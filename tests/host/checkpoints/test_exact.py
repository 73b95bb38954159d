"""Undo and crashes are exact without any pause: variables and files are what a model in Python says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from exact_machines import ExactMachine
from session_machines import check, hosted


@pytest.fixture(params=["none", "native"])
def machine(request: pytest.FixtureRequest) -> Iterator[type[ExactMachine]]:
    """The machine, with a loop and a host."""
    with hosted(ExactMachine, request.param) as kind:
        yield kind


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("examples", "steps"), [pytest.param(5, 12, id="few"), pytest.param(40, 20, id="many", marks=pytest.mark.slow)]
)
def test_undo_and_crashes_are_exact(machine: type[ExactMachine], examples: int, steps: int) -> None:
    check(machine, examples, steps)
