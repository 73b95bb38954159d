"""Which timeouts callers can pass."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cellblock import InvalidInputError
from cellblock.common.timeouts import check_timeout


@pytest.mark.parametrize("timeout", [None, 1, 0.1, math.inf])
def test_timeouts_that_mean_something(timeout: float | None) -> None:
    check_timeout(timeout)


@pytest.mark.parametrize("timeout", [0, -1, math.nan, -math.inf, True, "1", 10**400, pytest.param(10**6000, id="huge")])
def test_timeouts_that_mean_nothing(timeout: Any) -> None:
    with pytest.raises(InvalidInputError, match="positive number of seconds"):
        check_timeout(timeout)
