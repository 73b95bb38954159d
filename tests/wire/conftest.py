"""The wire starts nothing and opens nothing, so its tests need no watch for what they leave behind."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Take the place of the fixture that starts a host."""
