"""Installations of a session, and which of them a state has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellblock.host.environments.store import Wheel
from cellblock.host.kernels.session_state import SessionState
from cellblock.host.packages import CURRENT, PackageLayers

ONE, TWO = Wheel("one", "1.0", "1" * 64), Wheel("two", "1.0", "2" * 64)


def current(place: Path) -> str:
    return os.readlink(place / CURRENT)


def installed(layers: PackageLayers, place: Path, past: SessionState, *wheels: Wheel) -> int:
    """Install packages in a cell. Return the state that it leads to."""
    past.begin()
    layers.new_directory(str(place))
    layers.add(str(place), wheels, past.state)
    return past.state


@pytest.mark.parametrize("again", [False, True])
def test_a_state_has_the_installation_that_it_was_reached_with(again: bool, tmp_path: Path) -> None:
    layers, past = PackageLayers(recorded=True), SessionState()

    def go_to(state: int, expected: str) -> None:
        nonlocal layers
        if again:  # by the host after the one that was killed
            layers = PackageLayers(recorded=True)
        layers.go_to(str(tmp_path), state)
        assert current(tmp_path) == expected

    fresh = past.state
    one = installed(layers, tmp_path, past, ONE)
    both = installed(layers, tmp_path, past, ONE, TWO)
    go_to(one, "1")
    go_to(fresh, "0")
    go_to(both, "2")
    go_to(fresh, "0")
    past.begin()
    other = past.state
    go_to(other, "0")
    go_to(one, "1")
    assert (layers.wheels(1), layers.wheels(2), layers.wheels(0)) == ([ONE], [ONE, TWO], [])
    assert 2 in layers
    assert 3 not in layers


def test_what_a_session_can_write_is_not_believed(tmp_path: Path) -> None:
    layers, past = PackageLayers(recorded=False), SessionState()
    state = installed(layers, tmp_path, past, ONE)
    assert not (tmp_path / ".installations").exists()
    (tmp_path / ".installations").write_text('{"wheels": {"7": []}, "states": [[0, 7]]}')
    later = PackageLayers(recorded=False)
    later.go_to(str(tmp_path), state)
    assert (7 in later, current(tmp_path)) == (False, "1")


def test_a_session_without_installations_leaves_nothing(tmp_path: Path) -> None:
    PackageLayers(recorded=True).go_to(str(tmp_path / "missing"), 1)
    assert not os.listdir(tmp_path)
