"""The loop of an init: which of its kernels count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cellblock.launch.init.serving import Init


def test_a_kernel_is_alone_when_all_others_are_ending() -> None:
    init: Any = Init.__new__(Init)
    one, ending, other = (SimpleNamespace(leaving=leaving) for leaving in (False, True, False))
    init._seats = {3: one, 4: ending}
    assert init._alone(one)
    assert not init._alone(ending)
    init._seats[5] = other
    assert not init._alone(one)
