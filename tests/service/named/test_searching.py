"""Searches find sessions by what they are called and by what they ran, even after their end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from cellblock.errors import InvalidInputError
from cellblock.model.sessions import SessionRecord
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.named.searching import search
from cellblock.service.store.named import NamedStore
from named_sessions import OPTIONS, submit


async def names(sessions: NamedSessions, words: str, count: int = 100) -> list[str]:
    """Return the names of found sessions."""
    return [one.name for one in await search(sessions, words, count)]


async def test_live_and_ended_sessions_are_found(sessions: NamedSessions) -> None:
    first = await sessions.create("prices", OPTIONS, {"owner": "ada"})
    for code in ("import csv\nrows = ['100%', 'a_b']", "total = 1"):
        await submit(sessions, first, code).wait()
    second = await sessions.create("plots", OPTIONS)
    await submit(sessions, second, "Total = 2").wait()
    await sessions.create("unused", OPTIONS)
    assert await names(sessions, "total") == ["plots", "prices"]
    await sessions.destroy("prices")
    await sessions.destroy("unused")
    assert await names(sessions, "") == ["plots", "prices"]
    assert await names(sessions, "", 1) == ["plots"]
    assert await names(sessions, "ADA csv") == ["prices"]
    assert await names(sessions, "csv total") == []  # no cell has both
    assert await names(sessions, "100% a_b") == ["prices"]
    assert await names(sessions, "1%") == []
    assert await names(sessions, "axb") == []
    (found,) = await search(sessions, "rows", 10)
    assert (found.kernel_id, found.code, found.tags) == (first.record.kernel_id, "rows = ['100%', 'a_b']", {"owner": "ada"})
    assert found.ended is not None
    assert time.time() - found.ended < 60
    (named,) = await search(sessions, "ada", 10)
    assert (named.cell, named.code) == ("", "")
    again = await sessions.create("prices", OPTIONS)
    assert {one.kernel_id: one.ended is None for one in await search(sessions, "prices", 10)} == {
        first.record.kernel_id: False,
        again.record.kernel_id: True,
    }
    with pytest.raises(InvalidInputError, match="at most 8 words"):
        await search(sessions, "a b c d e f g h i", 10)


async def test_ended_sessions_survive_the_daemon_but_not_their_days(sessions: NamedSessions, state: Path) -> None:
    first = await sessions.create("first", OPTIONS)
    await submit(sessions, first, "x = 1").wait()
    await sessions.destroy("first")
    assert await names(sessions, "first") == ["first"]
    number = first.record.kernel_id
    for age, there in ((3600.0, True), (-1.0, False)):
        sessions.store.writer.flush()
        sessions.store.sessions._max_age = age
        assert sessions.store.sessions.has_ended(number) is there
        assert await names(sessions, "first") == ["first"] * there


async def test_old_ones_and_too_many_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellblock.service.store.session_registry.MAX_ENDED", 3)
    monkeypatch.setattr("cellblock.service.store.session_registry._TRIM_EVERY", 0)
    store = NamedStore(tmp_path)
    for number in range(6):
        record = SessionRecord(f"{number:032}", f"s{number}", "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00+00:00")
        store.sessions.add(record, {})
        columns = "n, id, session, key, digest, state, submitted, size, code"
        insert = f"INSERT INTO executions ({columns}) VALUES (?, ?, ?, '', x'', 'done', 1.0, 0, 'x')"
        store.writer.write((insert, (number, f"{number:032x}", record.kernel_id)))
        store.sessions.remove(record.kernel_id)
    assert len(store.sessions.ended(10)) == 3
    store.close()


@pytest.mark.slow
async def test_a_long_search_lets_others_run(sessions: NamedSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellblock.service.named.searching._CELLS_AT_ONCE", 1)
    first = await sessions.create("first", OPTIONS)
    for number in range(20):
        await submit(sessions, first, f"{number}").wait()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(others())
    monkeypatch.setattr("cellblock.common.turns._SLICE", 0.0)
    assert await names(sessions, "nowhere") == []
    other.cancel()
    assert turns > 3
