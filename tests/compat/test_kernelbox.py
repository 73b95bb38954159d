"""KernelBox's name for cellblock. langchain-kernelbox itself is tried in tests/frameworks."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import cellblock
from cellblock import StateError
from cellblock.compat import kernelbox


def test_one_line_makes_the_name_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kernelbox", raising=False)
    kernelbox.install()
    kernelbox.install()
    import kernelbox as found  # type: ignore[import-not-found, unused-ignore]  # KernelBox need not be installed

    assert found is kernelbox
    for name in {*kernelbox.__all__} - {"KernelBoxConfig"}:
        assert getattr(found, name) is getattr(cellblock, name)
    assert found.KernelBoxConfig().execution_timeout > 0


def test_a_switch_that_comes_too_late_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kernelbox", ModuleType("kernelbox"))
    with pytest.raises(StateError, match="before the module that imports it"):
        kernelbox.install()
