"""Undo and crashes are exact without any pause: variables and files are what a model in Python says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from exact_machines import ExactMachine
from session_machines import check, hosted


@pytest.fixture(params=[pytest.param("none", marks=pytest.mark.slow), "native"])
def machine(request: pytest.FixtureRequest) -> Iterator[type[ExactMachine]]:
    """The machine, with a loop and a host."""
    with hosted(ExactMachine, request.param) as kind:
        yield kind


MANY = [
    pytest.param(examples, steps, id=f"many, part {part}", marks=[pytest.mark.slow, pytest.mark.long])
    for part, (examples, steps) in enumerate([(34, 12), (95, 4)], 1)
]
"""Each run draws other histories; in parts, because processes share them."""


@pytest.mark.timeout(900)  # of one part, on a busy machine, minutes are no sign of a fault
@pytest.mark.parametrize(("examples", "steps"), [pytest.param(1, 8, id="few"), *MANY])
@pytest.mark.sampled(2)
def test_undo_and_crashes_are_exact(machine: type[ExactMachine], examples: int, steps: int) -> None:
    check(machine, examples, steps)
