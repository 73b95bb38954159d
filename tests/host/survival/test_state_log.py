"""The log of a session's state: what was written is read, whole records only, and it does not grow for ever."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from cellblock.host.kernels.session_state import SessionState
from cellblock.host.kernels.state_events import Called, Dropped, Looked
from cellblock.host.snapshots import Snapshot
from cellblock.host.snapshots.entries import Entries, Folder, Totals
from cellblock.host.snapshots.written import Description
from cellblock.host.survival.state_log import StateLog

_made: list[StateLog] = []


@pytest.fixture
def log() -> Iterator[StateLog]:
    _made.append(StateLog.make())
    yield _made[0]
    while _made:
        _made.pop().close()


def again(log: StateLog) -> StateLog:
    """Return what the next host has: the same file."""
    _made.append(StateLog(os.dup(log.fd)))
    return _made[-1]


async def test_events_are_written_together_in_the_next_turn(log: StateLog) -> None:
    log.write(Dropped("a"))
    log.write(Called(1.0, "b"))
    assert again(log).read() == []
    await asyncio.sleep(0)
    assert again(log).read() == [Dropped("a"), Called(1.0, "b")]


async def test_the_next_host_goes_on_after_what_it_has_read(log: StateLog) -> None:
    log.write(Dropped("a"))
    log.settle()
    other = again(log)
    other.read()
    other.write(Dropped("b"))
    other.settle()
    assert again(log).read() == [Dropped("a"), Dropped("b")]


@pytest.mark.parametrize("cut", range(1, 150, 6))
async def test_a_record_that_was_cut_off_is_not_read(log: StateLog, cut: int) -> None:
    events = [Dropped("first"), Dropped("x" * 10)]
    for event in events:
        log.write(event)
    log.settle()
    os.ftruncate(log.fd, max(os.fstat(log.fd).st_size - cut, 4096))
    other = again(log)
    read = other.read()
    assert read == events[: len(read)]
    assert len(read) < 2
    other.write(Dropped("next"))
    other.settle()
    assert again(log).read() == [*read, Dropped("next")]


async def test_snapshots_are_described_for_the_next_host(log: StateLog) -> None:
    described = Description(0, (0, 0), complete=True, totals=Totals(), status=b"", parts=(1,))
    state = SessionState()
    log.follow(state, lambda snapshot: described)
    state.look(Snapshot(Folder(0, (0, 0), Entries({}), complete=True, totals=Totals(), status=b"")))
    assert isinstance(state.pairs.latest, Snapshot)
    await asyncio.sleep(0)
    other = again(log)
    assert other.read()[1:] == [Looked(described)]
    log.rewrite()
    (read,) = again(log).read()
    assert read.pairs.latest == described


async def test_it_is_written_anew_when_it_is_long(log: StateLog) -> None:
    state = SessionState()
    log.follow(state, lambda _: None)
    for number in range(12_000):
        state.commit(Called(number, "x" * 50))
        await asyncio.sleep(0)
    assert os.fstat(log.fd).st_blocks * 512 < 600_000
    read = SessionState.read(again(log).read())
    assert read is not None
    assert read.outside == state.outside


async def test_what_cannot_all_be_written_is_not_read(log: StateLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write(Dropped("a"))
    log.settle()

    def full(*_: object) -> int:
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        log.write(Dropped("b"))
        log.settle()
    log.write(Dropped("c"))
    log.settle()
    assert again(log).read() == []


async def test_a_closed_one_takes_no_more(log: StateLog) -> None:
    log.follow(SessionState(), lambda _: None)
    log.close()
    log.close()
    log.write(Dropped("b"))
    log.settle()
    log.rewrite()
