"""Named sessions in one process and in the next: what is kept, what is lost, and what is said about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import Host, NotFoundError
from cellblock.named.sessions import NamedSessions
from named_sessions import OPTIONS, after_a_kill, submit
from processes import eventually


async def test_a_session_is_listed_by_the_next_process_and_says_that_its_variables_are_lost(
    sessions: NamedSessions, zygote_host: Host, state: Path
) -> None:
    named = await sessions.create("one", {**OPTIONS, "startup_code": "start = 1"}, {"task": "eda"})
    await submit(sessions, named, "x = 1").wait()
    later = await after_a_kill(sessions, zygote_host, state)
    (record,) = later.records()
    assert (record.name, record.kernel_id, record.tags, record.status) == (
        "one",
        named.record.kernel_id,
        {"task": "eda"},
        "dead",
    )
    found = await later.create("one")
    first = await submit(later, found, "'x' in globals(), start").wait()
    assert (first.return_value, first.recovery, first.status) == ("(False, 1)", "restarted", "success")
    assert (await submit(later, found, "1").wait()).recovery is None
    assert later.records()[0].status == "idle"
    assert [one.state for one in later.executions.last(later.find("one"), 10)] == ["done"] * 3
    await later.destroy("one")
    await later.close()


async def test_a_session_that_nobody_uses_is_ended(sessions: NamedSessions, zygote_host: Host, state: Path) -> None:
    await sessions.create("brief", {**OPTIONS, "idle_timeout": 0.05})
    await sessions.create("long", {**OPTIONS, "idle_timeout": 1000})
    await eventually(lambda: [record.name for record in sessions.records()] == ["long"])
    with pytest.raises(NotFoundError):
        sessions.find("brief")
    later = await after_a_kill(sessions, zygote_host, state)
    assert [record.name for record in later.records()] == ["long"]
    await later.close()
