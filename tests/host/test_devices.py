"""The locks of devices."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellblock import ConflictError, StoreError
from cellblock.host.devices import SessionDevices
from cellblock.host.place import NO_PLACES, Places
from cellblock.walls.sandbox.gpus import GPU_SPAN

ZERO, ONE = {"gpu:0": [(0, GPU_SPAN)]}, {"gpu:1": [(GPU_SPAN, GPU_SPAN)]}


class Custodian(Places):
    """Holds what sessions have, as the process that outlives hosts does."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}

    def place_made(self, path: str, held: int) -> None:
        self.held[path] = os.dup(held)

    def place_gone(self, path: str) -> None:
        os.close(self.held.pop(path))

    def take_place(self, path: str) -> int | None:
        return os.dup(self.held[path]) if path in self.held else None


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_each_device_has_a_lock_of_its_own() -> None:
    first, second = (SessionDevices(name, ("gpu:0",), NO_PLACES) for name in ("first", "second"))
    both, other = SessionDevices("both", ("gpu:1", "gpu:0"), NO_PLACES), SessionDevices("other", ("gpu:1",), NO_PLACES)
    first.lock(ZERO)
    first.lock(ZERO)
    for blocked, wanted in ((second, ZERO), (both, ONE | ZERO)):
        with pytest.raises(ConflictError, match="gpu:0 is used by another session"):
            blocked.lock(wanted)
    other.lock(ONE)  # a refused session has locked nothing
    first.release()
    first.release()
    second.lock(ZERO)
    second.release()
    other.release()


def test_locks_outlive_the_host() -> None:
    custodian = Custodian()
    killed = SessionDevices("place", ("gpu:0",), custodian)
    killed.lock(ZERO)
    assert killed._held is not None
    os.close(killed._held)  # its process has ended
    other = SessionDevices("other", ("gpu:0",), NO_PLACES)
    with pytest.raises(ConflictError):
        other.lock(ZERO)
    next_one = SessionDevices("place", ("gpu:0",), custodian)
    next_one.lock(ZERO)
    next_one.release()
    assert not custodian.held
    other.lock(ZERO)
    other.release()


def test_a_state_directory_that_cannot_be_used_is_named(state: Path) -> None:
    state.touch()
    with pytest.raises(StoreError, match=r"gpus\.lock, where cellblock locks GPUs"):
        SessionDevices("place", ("gpu:0",), NO_PLACES).lock(ZERO)
