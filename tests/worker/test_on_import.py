"""A module is changed as soon as it is imported, or at once."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from cellblock.worker.on_import import on_import


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "changed_by_test.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, "changed_by_test", raising=False)
    return "changed_by_test"


def test_now_or_later(module: str) -> None:
    seen = []

    def change(found: Any) -> None:
        seen.append(found.value)
        found.value += 1

    before = len(sys.meta_path)
    on_import(module, change)
    assert seen == []
    assert importlib.import_module(module).value == 2
    assert len(sys.meta_path) == before  # it looks at no other import
    on_import(module, change)
    assert (seen, importlib.import_module(module).value) == ([1, 2], 3)
