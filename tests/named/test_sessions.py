"""Named sessions in one process and in the next: what is kept, what is lost, and what is said about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cellblock import Approvals, BusyError, ConflictError, Host, NotFoundError, NotRunError, OutcomeUnknownError, StoreError
from cellblock.named.executions import Execution
from cellblock.named.limits import NamedLimits
from cellblock.named.past import PastExecution
from cellblock.named.session import NamedSession
from cellblock.named.sessions import NamedSessions
from cellblock.store.named import NamedStore
from processes import eventually

OPTIONS = {"sandbox": False}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Where sessions outlive a process."""
    return tmp_path / "state"


@pytest.fixture
async def sessions(
    zygote_host: Host, state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[NamedSessions]:
    """Named sessions on a warm host."""
    monkeypatch.chdir(tmp_path)
    sessions = NamedSessions(zygote_host, NamedStore(state))
    yield sessions
    await sessions.close()


def submit(sessions: NamedSessions, named: NamedSession, code: str, **options: Any) -> Execution | PastExecution:
    return sessions.submit(named, Execution(named.record.kernel_id, named.record.name, code, **options))


async def after_a_kill(sessions: NamedSessions, host: Host, state: Path) -> NamedSessions:
    """What another process would see if this one were killed now. The old one is of no more use."""
    sessions.store.writer.flush()
    copied = state.parent / f"{state.name}-later"
    copied.mkdir(mode=0o700)
    for path in state.iterdir():
        if path.is_file():
            (copied / path.name).write_bytes(path.read_bytes())
    (state / "named").rename(copied / "named")
    (state / "named").mkdir()
    return NamedSessions(host, NamedStore(copied))


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
    assert [one.state for one in later.executions("one", 10)] == ["done"] * 3
    await later.destroy("one")
    await later.close()


async def test_what_ran_is_unknown_and_what_waited_never_ran(
    sessions: NamedSessions, zygote_host: Host, state: Path, tmp_path: Path
) -> None:
    named = await sessions.create("one", OPTIONS)
    running = submit(sessions, named, "open('begun', 'a').write('x'); import time; time.sleep(60)", key="a")
    waiting = submit(sessions, named, "open('never', 'w')", key="b")
    await eventually((tmp_path / "begun").exists)
    later = await after_a_kill(sessions, zygote_host, state)
    _, found = later.execution(running.record.id)
    assert found.record.state == "unknown"
    with pytest.raises(OutcomeUnknownError, match="nobody knows how far it came") as caught:
        await found.wait()
    assert caught.value.execution == running.record.id
    with pytest.raises(NotRunError, match=r"before .* began to run"):
        await later.execution_of_key("one", "b").wait()
    again = submit(later, await later.create("one"), "open('never', 'w')", key="b")
    assert again.record.id == waiting.record.id
    kinds = [(event.kind, event.data.get("ran")) async for event in found.follow()]
    assert kinds[-1] == ("failed", "unknown")
    assert not (tmp_path / "never").exists()
    assert (tmp_path / "begun").read_text() == "x"
    await later.close()
    await sessions.destroy("one")


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


async def test_a_reader_resumes_without_a_gap_in_another_process(
    sessions: NamedSessions, zygote_host: Host, state: Path
) -> None:
    named = await sessions.create("one", OPTIONS)
    execution = submit(sessions, named, "for i in range(50): print(i, flush=True)\n'x' * 100_000", live=True)
    first = []
    async for event in execution.follow():
        first.append(event)
        if len(first) == 3:
            break
    await execution.wait()
    whole = [event async for event in execution.follow()]
    later = await after_a_kill(sessions, zygote_host, state)
    _, past = later.execution(execution.record.id)
    assert first + [event async for event in past.follow(3)] == whole
    assert [event.seq for event in whole] == list(range(1, len(whole) + 1))
    assert "".join(event.data["text"] for event in whole if event.kind == "stream") == "".join(f"{i}\n" for i in range(50))
    assert (await past.wait()).to_dict() == (await execution.wait()).to_dict()
    await later.close()


async def test_more_events_than_are_kept_leave_a_gap(sessions: NamedSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellblock.named.executions.MAX_EVENTS", 400)
    named = await sessions.create("one", OPTIONS)
    code = "from IPython.display import clear_output\nfor _ in range(1000): clear_output()"
    execution = submit(sessions, named, code, live=True)
    await execution.wait()
    await eventually(lambda: not named.executions)
    for found in (execution, sessions.execution(execution.record.id)[1]):
        events = [event async for event in found.follow()]
        assert events[0].kind == "gap"
        assert [event.seq for event in events] == list(range(events[0].seq, events[-1].seq + 1))
        assert (events[0].data["dropped"], events[-1].kind) == (events[0].seq, "result")
        assert len(events) <= 401


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
    assert [event.kind async for event in sessions.execution(running.record.id)[1].follow()][-1] == "result"
    assert (await submit(sessions, named, "1 + 1").wait()).return_value == "2"


async def test_limits(zygote_host: Host, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sessions = NamedSessions(zygote_host, limits=NamedLimits(sessions=2, waiting=3))
    named = await sessions.create("one", OPTIONS)
    await sessions.create("two", OPTIONS)
    with pytest.raises(BusyError, match="there are 2 sessions") as caught:
        await sessions.create("three", OPTIONS)
    assert caught.value.retry_after > 0
    assert await sessions.create("two") is not None
    running = submit(sessions, named, "import time; time.sleep(60)")
    waiting = [submit(sessions, named, "1") for _ in range(3)]
    with pytest.raises(BusyError, match="3 executions wait in session 'one'"):
        submit(sessions, named, "1")
    assert await waiting[0].cancel(None)
    with pytest.raises(NotRunError):
        await waiting[0].wait()
    await eventually(lambda: running.record.state == "running")
    assert await running.cancel(named.current)
    assert (await running.wait()).status == "interrupted"
    assert [(await one.wait()).return_value for one in waiting[1:]] == ["1", "1"]
    await sessions.close()


async def test_sessions_that_use_much_memory_leave_no_room_for_others(native_host: Host, tmp_path: Path) -> None:
    sessions = NamedSessions(native_host, limits=NamedLimits(memory=80 << 20))
    options = {"working_dir": str(tmp_path), "images_dir": str(tmp_path)}
    try:
        named = await sessions.create("large", options)
        await submit(sessions, named, "large = b'x' * (100 << 20)").wait()
        await eventually(lambda: sessions.about()["memory"] > 80 << 20)
        with pytest.raises(BusyError, match="all sessions together use"):
            await sessions.create("other", options)
        await sessions.restart("large")
        await sessions.create("other", options)
    finally:
        await sessions.close()


async def test_a_session_that_nobody_uses_is_ended(sessions: NamedSessions, zygote_host: Host, state: Path) -> None:
    await sessions.create("brief", {**OPTIONS, "idle_timeout": 0.05})
    await sessions.create("long", {**OPTIONS, "idle_timeout": 1000})
    await eventually(lambda: [record.name for record in sessions.records()] == ["long"])
    with pytest.raises(NotFoundError):
        sessions.find("brief")
    later = await after_a_kill(sessions, zygote_host, state)
    assert [record.name for record in later.records()] == ["long"]
    await later.close()


async def test_a_session_that_was_destroyed_keeps_its_executions(sessions: NamedSessions) -> None:
    named = await sessions.create("one", OPTIONS)
    execution = submit(sessions, named, "1 + 1")
    await execution.wait()
    assert await sessions.destroy("one")
    session, past = sessions.execution(execution.record.id)
    assert session is None
    assert (await past.wait()).return_value == "2"
    with pytest.raises(NotFoundError):
        sessions.execution("0" * 32)


APPROVED = {**OPTIONS, "approve_shell_cmds": True}
ASKS = "print(get_ipython().getoutput('echo done')[0])"


async def test_what_waits_is_decided_by_name_and_withdrawn_when_the_process_ends(
    sessions: NamedSessions, zygote_host: Host, state: Path
) -> None:
    named = await sessions.create("one", APPROVED)
    execution = submit(sessions, named, ASKS, live=True)
    await eventually(lambda: sessions.approvals.waiting())
    (asked,) = sessions.approvals.waiting(named.record.kernel_id)
    assert (asked.session_name, asked.execution, asked.kind, asked.state) == ("one", execution.record.id, "shell", "pending")
    later = await after_a_kill(sessions, zygote_host, state)
    (withdrawn,) = later.approvals.waiting(withdrawn=True)
    assert (withdrawn.id, withdrawn.since, withdrawn.state) == (asked.id, asked.since, "withdrawn")
    assert later.approvals.waiting() == []
    assert await later.approvals.decide((asked.id,), allow=True) == []
    await later.close()
    assert await sessions.approvals.decide((asked.id, "other"), allow=True, by="alice\x1b[2J") == [asked.id]
    assert "done" in (await execution.wait()).output
    with Approvals() as trail:
        (decision,) = trail.last(1, session=named.record.kernel_id)
    assert decision.by == "person: alice\\x1b[2J"
    assert sessions.approvals.waiting(withdrawn=True) == []


async def test_what_is_allowed_for_good_is_listed_and_can_be_revoked(
    sessions: NamedSessions, zygote_host: Host, state: Path
) -> None:
    named = await sessions.create("one", APPROVED)
    first = submit(sessions, named, ASKS, live=True)
    await eventually(lambda: sessions.approvals.waiting())
    await sessions.approvals.decide((sessions.approvals.waiting()[0].id,), allow=True, always="call", by="bob")
    await first.wait()
    assert "done" in (await submit(sessions, named, ASKS, live=True).wait()).output  # nobody is asked
    (permission,) = sessions.approvals.allowed(named.record.kernel_id)
    assert (permission.session_name, permission.scope, permission.kind, permission.by) == ("one", "call", "shell", "bob")
    later = await after_a_kill(sessions, zygote_host, state)
    assert later.approvals.allowed() == [permission]
    again = submit(later, await later.create("one"), ASKS, live=True)
    assert "done" in (await again.wait()).output
    await later.close()
    assert sessions.approvals.revoke((permission.id, "other")) == [permission.id]
    assert sessions.approvals.allowed() == []
    asks = submit(sessions, named, ASKS, live=True)
    await eventually(lambda: sessions.approvals.waiting())
    await sessions.approvals.decide(tuple(asked.id for asked in sessions.approvals.waiting()), allow=False)
    assert not (await asks.wait()).ok
