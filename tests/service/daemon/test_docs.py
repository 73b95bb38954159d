"""docs/daemon.md has every request with its fields, and nothing besides."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from cellblock.operations import OPERATIONS

TEXT = (Path(__file__).parents[3] / "docs" / "daemon.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Nothing is started here, so that there is nothing to watch."""


def test_every_request_is_there_with_its_fields() -> None:
    table = TEXT.partition("| request | fields |")[2]
    written = {
        row[1]: re.findall(r"`(\w+)`", row[2])
        for row in re.finditer(r"^\| `([\w ]+)` \| (.*?) \| \S", table, flags=re.MULTILINE)
    }
    assert written == {
        name: [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # it is a dataclass
        for name, kind in OPERATIONS.items()
    }
