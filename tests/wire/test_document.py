"""docs/wire.md names the version and shows every change of state."""

from __future__ import annotations

import re
from pathlib import Path

from cellblock.wire.frames import VERSION
from cellblock.wire.protocol import TRANSITIONS

TEXT = (Path(__file__).parents[2] / "docs" / "wire.md").read_text(encoding="utf-8")


def test_the_version_is_named() -> None:
    assert f"`VERSION = {VERSION}`" in TEXT


def test_the_diagram_shows_every_change_of_state() -> None:
    drawn = set(re.findall(r"^    (\w+) --> (\w+): (\w+) (\w+)$", TEXT, flags=re.MULTILINE))
    assert drawn == {
        (state.value, following.value, side.value, kind)
        for state, row in TRANSITIONS.items()
        for (side, kind), following in row.items()
        if following is not state
    }
