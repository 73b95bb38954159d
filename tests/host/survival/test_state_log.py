"""The log of a session's states: what was written is read, whole records only, and it does not grow for ever."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

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


async def test_records_are_written_together_in_the_next_turn(log: StateLog) -> None:
    log.append("a", 1)
    log.append("b", [2])
    assert again(log).read() == []
    await asyncio.sleep(0)
    assert again(log).read() == [("a", 1), ("b", [2])]


async def test_the_next_host_goes_on_after_what_it_has_read(log: StateLog) -> None:
    log.append("a")
    log.flush()
    other = again(log)
    other.read()
    other.append("b")
    other.flush()
    assert again(log).read() == [("a",), ("b",)]


@pytest.mark.parametrize("cut", range(1, 30))
async def test_a_record_that_was_cut_off_is_not_read(log: StateLog, cut: int) -> None:
    log.append("first")
    log.append("x" * 10)
    log.flush()
    os.ftruncate(log.fd, os.fstat(log.fd).st_size - cut)
    other = again(log)
    read = other.read()
    assert read == [("first",), ("x" * 10,)][: len(read)]
    assert len(read) < 2
    other.append("next")
    other.flush()
    assert again(log).read() == [*read, ("next",)]


async def test_it_is_written_anew_when_it_is_long(log: StateLog) -> None:
    log.make_base = lambda: ("base", "b" * 1000)
    for number in range(20_000):
        log.append("record", number, "x" * 50)
        await asyncio.sleep(0)
    assert os.fstat(log.fd).st_blocks * 512 < 600_000
    first, *rest = again(log).read()
    assert first == ("base", "b" * 1000)
    assert rest[-1] == ("record", 19_999, "x" * 50)


async def test_what_cannot_all_be_written_is_not_read(log: StateLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append("a")
    log.flush()

    def full(*_: object) -> int:
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        log.append("b")
        log.flush()
    log.append("c")
    log.flush()
    assert again(log).read() == []


async def test_a_closed_one_takes_no_more(log: StateLog) -> None:
    log.append("a")
    log.close()
    log.close()
    log.append("b")
    log.flush()
    log.rebase()
