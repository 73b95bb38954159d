"""Memory that a daemon gives back."""

from __future__ import annotations

import gc
import weakref

import pytest

from cellblock import Host
from cellblock.service.daemon import memory
from cellblock.service.daemon.memory import Memory, resident
from cellblock.service.named.named_sessions import NamedSessions
from processes import eventually


def test_what_is_not_needed_is_given_back_when_nothing_runs() -> None:
    measured = Memory()
    before = resident()
    pieces = [bytes(2000) for _ in range(20_000)]
    last = pieces[-1]
    del pieces
    if resident() < before + 20_000_000:
        pytest.skip("this C library gives it back by itself")
    assert not measured.look(1, busy=True)
    assert measured.look(1, busy=False)
    assert resident() < before + 20_000_000
    assert not measured.look(1, busy=False)
    assert last == bytes(2000)


@pytest.mark.slow
async def test_sessions_that_have_ended_are_forgotten(zygote_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they have run, and its results, are most of what a daemon holds."""
    monkeypatch.setattr(memory, "_CLOSING", 0.5)
    sessions, measured = NamedSessions(zygote_host), Memory()
    for name in ("one", "two"):
        named = await sessions.create(name, {"sandbox": False}, {})
        assert named.session is await sessions.live(name)
        await named.session.execute("'a result'")
        await eventually(named.session.checkpoints)
    session = weakref.ref(named.session)
    del named
    gc.disable()
    try:
        measured.look(2, busy=False)
        await sessions.wipe()
        assert await eventually(lambda: measured.look(len(sessions), busy=False))
        assert session() is None
    finally:
        gc.enable()
    await sessions.close()
