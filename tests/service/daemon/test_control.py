"""What is wrong with the daemon and its records is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock.service.daemon import control
from cellblock.service.store.tokens import Tokens
from cellblock.tools.registry.approvals import Approvals


def test_records_that_cannot_be_used_are_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "state"))
    assert control.problems() == []
    assert not (tmp_path / "state").exists()
    with Approvals():
        Tokens().create("one")
    assert control.problems() == []
    (tmp_path / "state" / "tokens.db").write_bytes(b"this is no database\n" * 1000)
    (problem,) = control.problems()
    assert "tokens.db cannot be used: file is not a database" in problem
