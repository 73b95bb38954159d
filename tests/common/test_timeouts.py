"""Which timeouts callers can pass."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cellblock import InvalidInputError
from cellblock.common.timeouts import check_timeout


def test_timeouts_that_mean_something() -> None:
    cases: list[float | None] = [None, 1, 0.1, math.inf]
    for timeout in cases:
        check_timeout(timeout)


@pytest.mark.parametrize("timeout", [0, -1, math.nan, -math.inf, True, "1", 10**400, pytest.param(10**6000, id="huge")])
def test_timeouts_that_mean_nothing(timeout: Any) -> None:
    with pytest.raises(InvalidInputError, match="positive number of seconds"):
        check_timeout(timeout)
