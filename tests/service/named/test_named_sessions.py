"""Named sessions in one process and in the next: what is kept, what is lost, and what is said about it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cellblock import Host, InvalidInputError, NotFoundError
from cellblock.model.sessions import SessionRecord
from cellblock.service.named.kernel_types import has_run
from cellblock.service.named.labels import Label, label_of
from cellblock.service.named.named_checkpoints import adopt, fork
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.named.session import NamedSession
from cellblock.service.store.named import NamedStore
from clocks import WallClock
from named_sessions import OPTIONS, after_a_kill, records, submit
from processes import alive, eventually
from suite import first_quick


async def test_a_session_is_listed_by_the_next_process_and_says_that_its_variables_are_lost(
    sessions: NamedSessions, zygote_host: Host, state: Path
) -> None:
    named = await sessions.create("one", {**OPTIONS, "startup_code": "start = 1"}, {"task": "eda"})
    await submit(sessions, named, "x = 1").wait()
    later = await after_a_kill(sessions, zygote_host, state)
    (record,) = records(later)
    assert (record.name, record.kernel_id, record.tags, record.status) == (
        "one",
        named.record.kernel_id,
        {"task": "eda"},
        "dead",
    )
    found = await later.create("one")
    first = await submit(later, found, "'x' in globals(), start").wait()
    assert (first.return_value, first.recovery, first.status) == ("(False, 1)", "restarted", "success")
    assert "[cellblock] The session's kernel ended with the daemon. Variables and imports are lost" in first.stderr
    assert (await submit(later, found, "1").wait()).recovery is None
    assert records(later)[0].status == "idle"
    assert [one.state for one in later.executions.last(later.find("one"), 10)] == ["done"] * 3
    await later.destroy("one")
    await later.close()


@pytest.mark.slow
async def test_a_session_that_nobody_uses_is_ended(sessions: NamedSessions, zygote_host: Host, state: Path) -> None:
    await sessions.create("brief", {**OPTIONS, "idle_timeout": 0.05})
    await sessions.create("long", {**OPTIONS, "idle_timeout": 1000})
    await eventually(lambda: [record.name for record in records(sessions)] == ["long"])
    with pytest.raises(NotFoundError):
        sessions.find("brief")
    later = await after_a_kill(sessions, zygote_host, state)
    assert [record.name for record in records(later)] == ["long"]
    await later.close()


async def test_a_session_in_a_clone_ends_only_when_asked_to(sessions: NamedSessions) -> None:
    """Its commits end with it."""
    named = await sessions.create("one", OPTIONS)
    found = [named.idle_timeout]
    for option in ({"workspace": "clone"}, {"idle_timeout": 5}):
        named.options = {**named.options, **option}
        named._read = None
        found.append(named.idle_timeout)
    assert found == [1800, None, 5]


async def test_no_session_ends_for_a_clock_that_was_put_forward(
    sessions: NamedSessions, zygote_host: Host, state: Path
) -> None:
    """In the time before a process, nobody has watched but a clock."""
    named = await sessions.create("one", {**OPTIONS, "idle_timeout": 1000})
    used = named.shown().last_used_at
    with WallClock() as clock:
        clock.ahead = 7200.0
        later = await after_a_kill(sessions, zygote_host, state)
        await later._look_after_all()
        assert [(record.name, record.last_used_at) for record in records(later)] == [("one", used)]
    await later.close()


async def test_a_session_with_a_running_program_is_not_idle(sessions: NamedSessions) -> None:
    busy = await sessions.create("busy", {**OPTIONS, "idle_timeout": 500})
    process = await (await sessions.live("busy")).spawn(["sleep", "1000"])
    busy.used -= 1000
    await sessions._look_after_all()
    await process.stop()
    await sessions._look_after_all()  # its time begins now
    assert [record.name for record in records(sessions)] == ["busy"]
    busy.used -= 1000
    await sessions._look_after_all()
    assert records(sessions) == []


@pytest.mark.slow
async def test_the_startup_code_runs_again_in_the_kernel_after_one_that_died(sessions: NamedSessions) -> None:
    options = {"startup_code": "start = globals().get('start', 0) + 1", "recovery": "none"}  # else a checkpoint may be there
    named = await sessions.create("one", {**OPTIONS, **options})
    assert (await submit(sessions, named, "start").wait()).return_value == "1"
    died = await submit(sessions, named, "import os; os._exit(3)").wait()
    assert (died.status, died.recovery) == ("died", "restarted")
    again = await submit(sessions, named, "start").wait()
    assert (again.return_value, again.recovery) == ("1", "restarted")
    assert again.stderr == "[cellblock] The kernel is fresh, and the startup code was run again\n"
    pid = int((await submit(sessions, named, "os = __import__('os'); os.getpid()").wait()).return_value or 0)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not alive(pid))
    between = await submit(sessions, named, "start").wait()
    assert (between.return_value, between.recovery) == ("1", "restarted")
    assert "[cellblock] The kernel died between cells: SIGKILL" in between.stderr
    last = await submit(sessions, named, "start").wait()
    assert (last.return_value, last.recovery, last.stderr) == ("1", None, "")


@pytest.mark.slow
async def test_startup_code_that_fails_later_is_told(sessions: NamedSessions, tmp_path: Path) -> None:
    (tmp_path / "setup").write_text("")
    named = await sessions.create("one", {**OPTIONS, "startup_code": "open('setup').read()", "recovery": "none"})
    await submit(sessions, named, "import os; os._exit(3)").wait()
    (tmp_path / "setup").unlink()
    again = await submit(sessions, named, "1").wait()
    assert again.ok
    assert "the startup code was run again, and failed" in again.stderr
    assert "FileNotFoundError" in again.stderr


@pytest.mark.slow
@pytest.mark.parametrize("hours", first_quick([0, 3]))
async def test_the_history_has_the_cells_of_earlier_processes(
    sessions: NamedSessions, zygote_host: Host, state: Path, hours: int
) -> None:
    """Whatever the clock has said meanwhile."""
    named = await sessions.create("one", OPTIONS)
    with WallClock() as clock:
        clock.ahead = 3600.0 * hours
        for code in ("x = 1", "1 / 0", "x"):
            await submit(sessions, named, code).wait()
    await submit(sessions, named, "'unseen'", silent=True).wait()
    later = await after_a_kill(sessions, zygote_host, state)
    found = await later.create("one")
    await submit(later, found, "y = 2").wait()
    shown = [(entry.code, entry.status) for entry in later.history("one", found.session, 100)]
    assert shown == [("x = 1", "success"), ("1 / 0", "error"), ("x", "success"), ("y = 2", "success")]
    assert [entry.code for entry in later.history("one", found.session, 2)] == ["x", "y = 2"]
    assert later.history("one", found.session, 1)[0].execution_count == 1
    await later.destroy("one")
    await later.close()


@pytest.mark.slow
async def test_a_session_that_ends_with_its_connection_is_not_there_for_the_next_process(
    sessions: NamedSessions, zygote_host: Host, state: Path
) -> None:
    named = await sessions.create("one", OPTIONS, fresh=True, lasting=False)
    assert (await submit(sessions, named, "1 + 1").wait()).return_value == "2"
    later = await after_a_kill(sessions, zygote_host, state)
    assert records(later) == []
    await later.close()


@pytest.mark.slow
async def test_startup_code_that_had_not_begun_runs_before_the_first_execution(
    sessions: NamedSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the process before was killed in between. Nothing was lost, so no result says so."""

    async def killed(*_: object) -> None:
        return None

    with monkeypatch.context() as patched:
        patched.setattr(NamedSession, "run_startup_code", killed)
        named = await sessions.create("one", {**OPTIONS, "startup_code": "start = 1"})
    assert not has_run(named.session.position)
    result = await submit(sessions, named, "start").wait()
    assert (result.return_value, result.recovery) == ("1", None)
    assert has_run(named.session.position)


@pytest.mark.slow
async def test_a_session_that_was_adopted_says_which_one_goes_on(sessions: NamedSessions) -> None:
    await sessions.create("one", OPTIONS)
    await fork(sessions, "one", ["branch"])
    number = sessions.find("branch").record.kernel_id
    await adopt(sessions, "one", number)
    for name in ("branch", number):
        with pytest.raises(NotFoundError, match=f"session '{name}' was adopted by 'one', which continues from its state"):
            sessions.find(name)
    await sessions.create("branch", OPTIONS)
    assert sessions.find("branch").record.kernel_id != number
    await sessions.destroy("branch")
    await sessions.destroy("one")


@pytest.mark.slow
async def test_a_session_whose_end_was_not_written_down_does_not_come_back(
    sessions: NamedSessions, zygote_host: Host, state: Path
) -> None:
    number = (await sessions.create("one", OPTIONS)).record.kernel_id
    later = await after_a_kill(sessions, zygote_host, state)
    assert later._named_like(Label(number), empty=False) is later.find("one")
    assert later._named_like(Label(number, ended=True), empty=False) is None
    assert later.all() == []
    assert later._named_like(Label(number), empty=False) is None
    await later.close()
    await sessions.destroy("one")


@pytest.mark.slow
async def test_a_session_that_goes_on_without_its_record_gets_a_name_that_is_free(
    sessions: NamedSessions, zygote_host: Host, state: Path
) -> None:
    named = await sessions.create("one", OPTIONS)
    label = Label.read(label_of(named.record, OPTIONS, "", lasting=True))
    assert sessions._named_like(label, empty=True) is named
    later = NamedSessions(zygote_host)
    await later.create("one", OPTIONS)
    assert later._named_like(label, empty=True) is None  # it was just being made
    found = later._named_like(label, empty=False)
    assert found is not None
    assert (found.record.name, found.record.kernel_id) == (f"one-{named.record.kernel_id[:8]}", named.record.kernel_id)
    (problem,) = later.about()["problems"]
    assert "was missing in the stored sessions and continues" in problem
    await later.close()
    await sessions.destroy("one")


async def test_a_session_of_a_newer_version_says_so_and_stays_as_it_is(
    sessions: NamedSessions, zygote_host: Host, state: Path
) -> None:
    await sessions.create("one", OPTIONS)
    sessions.store.writer.write(("UPDATE sessions SET options = ?", ('{"sandbox": false, "not_yet": 1}',)))
    later = await after_a_kill(sessions, zygote_host, state)
    with pytest.raises(
        InvalidInputError, match=r"'one' was created earlier.* no option 'not_yet'.* another version of cellblock"
    ):
        await later.live("one")
    assert later.find("one").options == {"sandbox": False, "not_yet": 1}
    await later.close()
    await sessions.destroy("one")


def test_removed_secrets_are_dropped_from_stored_options() -> None:
    now = "2026-01-01T00:00:00+00:00"
    store = NamedStore()
    options = {"secrets": ["KEY", "OTHER=env:X@b.test"], "tags": {}}
    record = SessionRecord("1", "s", now, now)
    named = NamedSession(Host(), record, options, store=store)
    store.sessions.add(record, options)
    assert not named.forget_secrets({"NONE"})
    assert named.forget_secrets({"KEY", "NONE"})
    left = {"OTHER": {"source": "env:X", "hosts": ["b.test"]}}
    assert named.options == {"secrets": left, "tags": {}}
    store.sessions.change_options("1", named.options)
    assert [one.options["secrets"] for one in store.sessions.all()] == [left]
    store.close()
