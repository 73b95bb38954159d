"""Submitting executions: keys, a full disk, and finding them again."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from pathlib import Path

import pytest

from cellblock import BusyError, ConflictError, Host, NotFoundError, NotRunError, Session, StoreError
from cellblock.host.kernels.channel import Line
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.named.session import NamedSession
from named_sessions import OPTIONS, after_a_kill, submit
from processes import eventually


async def test_a_key_is_for_one_execution(sessions: NamedSessions, zygote_host: Host, state: Path, tmp_path: Path) -> None:
    named = await sessions.create("one", OPTIONS)
    code = "print(open('ran', 'a').write('x'))"
    ids = {submit(sessions, named, code, key="k").record.id for _ in range(20)}
    results = await asyncio.gather(*(submit(sessions, named, code, key="k").wait() for _ in range(5)))
    assert len(ids) == 1
    assert {result.output for result in results} == {"1\n"}
    with pytest.raises(ConflictError, match="other code"):
        submit(sessions, named, "2", key="k")
    later = await after_a_kill(sessions, zygote_host, state)
    found = submit(later, await later.create("one"), code, key="k")
    assert {found.record.id} == ids
    assert (await found.wait()).output == "1\n"
    with pytest.raises(ConflictError):
        submit(later, await later.create("one"), "2", key="k")
    assert (tmp_path / "ran").read_text() == "x"
    await later.close()


@pytest.mark.slow
async def test_nothing_is_run_that_cannot_be_entered(sessions: NamedSessions, tmp_path: Path) -> None:
    """A full disk: what runs ends and gives its result, and nothing new begins."""
    named = await sessions.create("one", OPTIONS)
    connection = sessions.store.writer._connection
    running = submit(sessions, named, "print('x' * 60_000)\nopen('go').read()\n1", live=True)
    await eventually(lambda: running.record.state == "running")
    connection.execute("PRAGMA max_page_count = 1")
    for number in range(30):
        with suppress(StoreError):
            submit(sessions, named, f"open('new{number}', 'w'){'#' * 50_000}")
            continue
        break
    (tmp_path / "go").touch()
    await running.wait()
    assert not (tmp_path / f"new{number}").exists()
    assert "nothing can be stored" in sessions.about()["problems"][0]
    connection.execute("PRAGMA max_page_count = 1000000")
    await eventually(lambda: not named.executions)
    assert sessions.about()["problems"] == []
    assert [event.kind async for event in sessions.executions.find(running.record.id)[1].follow()][-1] == "result"
    assert (await submit(sessions, named, "1 + 1").wait()).return_value == "2"


async def test_a_session_that_was_destroyed_keeps_its_executions(sessions: NamedSessions) -> None:
    named = await sessions.create("one", OPTIONS)
    execution = submit(sessions, named, "1 + 1")
    await execution.wait()
    assert await sessions.destroy("one")
    session, past = sessions.executions.find(execution.record.id)
    assert session is None
    assert (await past.wait()).return_value == "2"
    with pytest.raises(NotFoundError):
        sessions.executions.find("0" * 32)


async def test_code_that_meets_a_closed_session_was_not_run(
    sessions: NamedSessions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As when the daemon ends: whoever has submitted it asks the next one."""
    named = await sessions.create("one", OPTIONS)
    prepared = sessions.executions._prepared

    async def closed(named: NamedSession) -> Session:
        session = await prepared(named)
        await session.close()
        return session

    monkeypatch.setattr(sessions.executions, "_prepared", closed)
    with pytest.raises(NotRunError, match="ended, before it began"):
        await submit(sessions, named, "open('ran', 'w')", key="k").wait()
    assert not (tmp_path / "ran").exists()
    with pytest.raises(NotFoundError):
        sessions.executions.find_key(named, "k")  # it is free again


@pytest.mark.slow
async def test_code_that_cannot_be_kept_for_a_later_host_was_not_run(
    sessions: NamedSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outcome is known, its key can be used again, and the next result says what it would have said."""
    named = await sessions.create("one", OPTIONS)
    await submit(sessions, named, "n = 0").wait()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    named.lost = True
    with monkeypatch.context() as patched:
        patched.setattr(Line, "queue", full)
        execution = submit(sessions, named, "n += 1", key="k")
        with pytest.raises(BusyError, match="nothing was done"):
            await execution.wait()
    assert (execution.record.state, execution.record.begun) == ("done", None)
    assert (await submit(sessions, named, "n += 1", key="k").wait()).recovery == "restarted"
    result = await submit(sessions, named, "n").wait()
    assert (result.return_value, result.recovery) == ("1", None)


async def test_the_key_of_what_was_cancelled_stays_taken(sessions: NamedSessions, tmp_path: Path) -> None:
    """A submission that was repeated, and comes late, must not run what its client has cancelled."""
    named = await sessions.create("one", OPTIONS)
    running = submit(sessions, named, "import time; time.sleep(60)")
    waiting = submit(sessions, named, "open('ran', 'w')", key="k")
    assert await sessions.executions.interrupt(named, "k")
    again = submit(sessions, named, "open('ran', 'w')", key="k")
    assert again.record.id == waiting.record.id
    with pytest.raises(NotRunError, match="cancelled before it began"):
        await again.wait()
    assert await running.cancel(named.current)
    assert not (tmp_path / "ran").exists()


async def test_a_restart_comes_before_what_waits_and_stops_only_what_runs(sessions: NamedSessions) -> None:
    """Turns of the host's session are in order, and a restart there stops all earlier ones: so what waits has none yet."""
    named = await sessions.create("one", OPTIONS)
    await submit(sessions, named, "x = 1").wait()
    running = submit(sessions, named, "import time; time.sleep(60)")
    waiting = [submit(sessions, named, "'x' in globals()"), submit(sessions, named, "2")]
    await eventually(lambda: named.session.cells.running, 60)
    await sessions.restart("one")
    assert (await running.wait()).status == "interrupted"
    assert [(await one.wait()).text for one in waiting] == ["False", "2"]
