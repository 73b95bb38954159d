"""Times of changes are compared with the time intervals of cells."""

from __future__ import annotations

import pytest

from cellblock.host.snapshots.times import is_within

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("last", "within"),
    [
        (9 * SECOND + 1, False),
        (10 * SECOND + 1, True),
        (20 * SECOND + 1, False),
        (31 * SECOND, True),
        # File systems that store only seconds, or multiples of two seconds, may store an earlier time.
        (8 * SECOND, True),
        (7 * SECOND, False),
        (20 * SECOND, True),
    ],
)
def test_a_change_is_within_the_intervals_of_its_cell(last: int, within: bool) -> None:
    assert is_within(last, [(10 * SECOND, 20 * SECOND), (30 * SECOND, 40 * SECOND)]) == within
