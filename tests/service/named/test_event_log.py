"""Readers of an execution's events: each gets all of them, or is told how many are missing."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from cellblock import Host
from cellblock.launch.custody.custodian_client import Custodian
from cellblock.service.named.limits import NamedLimits
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.store.named import NamedStore
from named_sessions import OPTIONS, after_a_kill, submit
from processes import eventually


@pytest.fixture
async def kept_sessions(tmp_path: Path) -> AsyncIterator[NamedSessions]:
    """Sessions whose kernels a custodian holds."""
    state = tmp_path / "kept"
    state.mkdir(0o700)
    custodian = Custodian.connect(state)
    host = Host(isolate="none", custodian=custodian)
    sessions = NamedSessions(host, NamedStore(state), NamedLimits())
    await sessions.adopt()
    yield sessions
    await sessions.close()
    await host.close()
    custodian.end()


async def test_a_reader_resumes_without_a_gap_in_another_process(
    sessions: NamedSessions, zygote_host: Host, state: Path
) -> None:
    named = await sessions.create("one", OPTIONS)
    execution = submit(sessions, named, "for i in range(50): print(i, flush=True)\n'x' * 2_000_000", live=True)
    first = []
    async for event in execution.follow():
        first.append(event)
        if len(first) == 3:
            break
    await execution.wait()
    whole = [event async for event in execution.follow()]
    later = await after_a_kill(sessions, zygote_host, state)
    _, past = later.executions.find(execution.record.id)
    assert first + [event async for event in past.follow(3)] == whole
    assert [event.seq for event in whole] == list(range(1, len(whole) + 1))
    assert "".join(event.data["text"] for event in whole if event.kind == "stream") == "".join(f"{i}\n" for i in range(50))
    assert (await past.wait()).to_dict() == (await execution.wait()).to_dict()
    await later.close()


@pytest.mark.slow
async def test_more_events_than_are_kept_leave_a_gap(sessions: NamedSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellblock.service.named.event_log.MAX_EVENTS", 400)
    named = await sessions.create("one", OPTIONS)
    code = "from IPython.display import clear_output\nfor _ in range(1000): clear_output()"
    execution = submit(sessions, named, code, live=True)
    await execution.wait()
    await eventually(lambda: not named.executions)
    for found in (execution, sessions.executions.find(execution.record.id)[1]):
        events = [event async for event in found.follow()]
        assert events[0].kind == "gap"
        assert [event.seq for event in events] == list(range(events[0].seq, events[-1].seq + 1))
        assert (events[0].data["dropped"], events[-1].kind) == (events[0].seq, "result")
        assert len(events) <= 401


@pytest.mark.slow
async def test_a_result_is_kept_before_it_is_told_although_it_is_not_in_the_database_yet(
    kept_sessions: NamedSessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.service.store.writer._SOON", 3600.0)
    named = await kept_sessions.create("one", OPTIONS)
    query = "SELECT count(*) FROM events WHERE kind = 'result'"

    def kept() -> int:
        """Return how many results the next process finds if this one is killed now."""
        copy = Path(tempfile.mkdtemp(dir=tmp_path))
        for path in (tmp_path / "kept").glob("named.db*"):
            shutil.copy(path, copy)
        with closing(NamedStore(copy)) as store:
            return int(store.writer.read(query)[0][0])

    for number in range(5):
        assert (await submit(kept_sessions, named, f"{number}", key=f"{number}").wait()).return_value == f"{number}"
        with closing(sqlite3.connect(tmp_path / "kept" / "named.db")) as other:
            assert (kept(), *other.execute(query).fetchone()) == (number + 1, 0)
    again = submit(kept_sessions, named, "4", key="4")
    assert (await again.wait()).return_value == "4"
