"""What steps that build a file system are told to leave out."""

from __future__ import annotations

from cellblock.walls.sandbox.mounts import _Builder
from cellblock.wire.sandbox import Bind


def test_what_is_bound_from_elsewhere_is_not_missing() -> None:
    """Nothing is there before it is bound; a mask or a protection for it must not be left out."""
    builder = _Builder(())
    builder._sources = {Bind("/real/inside", "/tmp/inside", "ro"): -1, Bind("/same", "/same", "ro"): -1}
    assert builder._made_by_binds() == {"/tmp", "/tmp/inside"}
