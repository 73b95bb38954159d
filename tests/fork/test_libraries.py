"""What belongs to Python goes on working in a copy of its process, or no copy is made. Libraries: test_in_sessions."""

from __future__ import annotations

import pytest

from fork.libraries import LIBRARIES
from fork.trying import installed, surprise, verdict
from suite import first_quick


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Each has a group of processes of its own, which is ended."""


@pytest.mark.parametrize("name", first_quick([name for name in LIBRARIES if (installed(name) or "").startswith("Python")], 3))
def test_a_copy_works_or_is_refused(name: str) -> None:
    assert (difference := surprise(verdict(name))) is None, difference
