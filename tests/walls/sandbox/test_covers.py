"""Which protected paths are covered."""

from __future__ import annotations

from cellblock.walls.sandbox.covers import Covers
from cellblock.wire.sandbox import Bind, Step


def test_what_is_bound_from_elsewhere_is_not_missing() -> None:
    """Nothing is there before it is bound; a mask or a protection for it must not be left out."""
    sources: dict[Step, int] = {Bind("/real/inside", "/tmp/inside", "ro"): -1, Bind("/same", "/same", "ro"): -1}
    assert Covers((), sources)._made_by_binds() == {"/tmp", "/tmp/inside"}
