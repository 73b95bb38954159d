"""Leases of a cluster's nodes, and what placements they let through."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock.errors import NotPlacedError
from cellblock.service.daemon.lease import Lease, now

SECOND = 1_000_000_000


def test_a_lease_is_valid_until_it_ends(tmp_path: Path) -> None:
    lease = Lease(tmp_path / "lease")
    seen = [lease.valid]
    lease.renew(now() + 60 * SECOND, 7)
    seen.append(lease.valid)
    assert Lease(tmp_path / "lease").epoch == 7, "another process sees the same"
    lease.renew(now(), 7)
    seen.append(lease.valid)
    assert seen == [False, True, False]


@pytest.mark.parametrize(
    ("grant", "problem"),
    [
        ("", "has no placement"),
        ("8:{later}", "an earlier director"),
        ("7:{before}", "has expired"),
        ("7:", "has expired"),
        ("7:x", "has expired"),
        ("{later}", "an earlier director"),
    ],
)
def test_placements_that_are_not_valid(tmp_path: Path, grant: str, problem: str) -> None:
    lease = Lease(tmp_path / "lease")
    lease.renew(0, 7)
    with pytest.raises(NotPlacedError, match=problem):
        lease.check(grant.format(later=now() + 60 * SECOND, before=now()))


def test_a_valid_placement(tmp_path: Path) -> None:
    lease = Lease(tmp_path / "lease")
    lease.renew(0, 7)
    lease.check(f"7:{now() + 60 * SECOND}")
