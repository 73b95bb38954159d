"""What is used goes on working in a copy of its process, or no copy is made. `make libraries` tries the large ones."""

from __future__ import annotations

import pytest

from fork.libraries import LARGE, LIBRARIES
from fork.trying import installed, surprise, verdict


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Each library has a group of processes of its own, which is ended."""


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [] if (installed(name) or "").startswith("Python") else [pytest.mark.slow]


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in LIBRARIES if name not in LARGE])
def test_a_copy_works_or_is_refused(name: str) -> None:
    if installed(name) is None:
        pytest.skip("it is not installed: see make libraries")
    assert (difference := surprise(verdict(name))) is None, difference
