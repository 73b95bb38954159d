"""The picture of all sessions: whoever names a moment gets what has changed since then."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.named.overview import Overview
from named_sessions import OPTIONS, submit

Changes = AsyncGenerator[dict[str, Any], None]


async def until(changes: Changes, name: str) -> dict[str, Any]:
    """Return the first change with something in a field."""
    async for change in changes:
        if change[name]:
            return change
    raise AssertionError(name)


async def test_a_moment_is_taken_up_again(sessions: NamedSessions) -> None:
    first = await sessions.create("first", OPTIONS)
    async with aclosing(sessions.overview.follow()) as changes:
        begun = await anext(changes)
        assert (begun["fresh"], [one["name"] for one in begun["sessions"]]) == (True, ["first"])
        execution = submit(sessions, first, "1 / 0")
        await execution.wait()
        counted = await until(changes, "sessions")
        while counted["sessions"][0]["cells"] != 1:
            counted = await until(changes, "sessions")
        assert counted["sessions"][0]["code"] == "1 / 0"
    await sessions.create("second", OPTIONS)
    await sessions.destroy("first")
    async with aclosing(sessions.overview.follow(counted["position"])) as changes:
        change = await anext(changes)
    assert not change["fresh"]
    assert [one["name"] for one in change["sessions"]] == ["second"]
    assert change["ended"] == [first.record.kernel_id]


@pytest.mark.slow
async def test_who_has_seen_everything_is_told_nothing(sessions: NamedSessions) -> None:
    await sessions.create("only", OPTIONS)
    async with aclosing(sessions.overview.follow()) as changes:
        position = (await anext(changes))["position"]
        named = sessions.find("only")
        sessions.overview._refuse(named, "host", "example.org", "not allowed")
        refused = await until(changes, "refusals")
    assert [one["what"] for one in refused["refusals"]] == ["example.org"]
    async with aclosing(sessions.overview.follow(position)) as changes:
        assert len((await until(changes, "refusals"))["refusals"]) == 1
    assert sessions.overview._watching is None


@pytest.mark.slow
async def test_what_is_unknown_begins_anew(sessions: NamedSessions) -> None:
    overview: Overview = sessions.overview
    for position in ("", "x", "0-1", f"{overview._era}-99", f"{overview._era}--1", f"{overview._era}-x"):
        async with aclosing(overview.follow(position)) as changes:
            await sessions.create(f"of-{abs(hash(position)) % 10**8}", OPTIONS)
            assert (await anext(changes))["fresh"], position


async def test_many_sessions_come_in_parts(sessions: NamedSessions) -> None:
    overview = sessions.overview
    await sessions.create("one", OPTIONS)
    overview._look()
    (row,) = overview._rows.values()
    overview._rows.update({str(number): row._replace(number=number) for number in range(2, 900)})
    parts = overview._changes(0, fresh=True)
    assert [len(part.sessions) for part in parts] == [200, 200, 200, 200, 99]
    assert [part.fresh for part in parts] == [True, False, False, False, False]
    assert [part.position for part in parts[:-1]] == [""] * 4
