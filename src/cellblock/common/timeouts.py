"""Validation of timeouts."""

from __future__ import annotations

import math

from cellblock.errors import InvalidInputError, shown


def check_timeout(timeout: float | None) -> None:
    """Validate a timeout.

    Raises:
        InvalidInputError: The timeout is invalid.
    """
    if timeout is None:
        return
    # Also rejects NaN, and integers larger than any float.
    right_type = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not right_type or not (0 < timeout < 1e300 or timeout == math.inf):
        raise InvalidInputError(f"timeout must be a positive number of seconds, or None for no limit, not {shown(timeout)}")
