"""The kernels of a host, and those that a killed host has left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cellblock.host.host_kernels import Kernels


@pytest.mark.parametrize("others", ["a copy", "a kernel", "none"])
def test_the_group_of_a_kernel_is_removed_only_if_no_other_is_in_it(others: str) -> None:
    """The first kernel of a session has the control group, and those that are made from its copies run in it."""
    removed: list[str] = []
    kernels: Any = Kernels.__new__(Kernels)
    kernels._connected = {7: SimpleNamespace(awaited=2)} if others == "a copy" else {}
    kernels.alive = set()
    kernels.launchers = SimpleNamespace(kernel_closed=lambda _launcher: None)
    keeping: Any = SimpleNamespace(
        kernels=[SimpleNamespace(first=7)] if others == "a kernel" else [], kernel_gone=lambda _: None
    )
    left: Any = SimpleNamespace(
        close=lambda: None,
        first=7,
        launcher=SimpleNamespace(kill=lambda _number: None),
        number=7,
        listeners={},
        ends=SimpleNamespace(group=SimpleNamespace(remove=lambda: removed.append("group"))),
    )
    kernels._forget(keeping, left)
    assert removed == (["group"] if others == "none" else [])
