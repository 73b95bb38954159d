"""How many sessions and executions there may be, and how much memory they may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import BusyError, Host, NotRunError
from cellblock.service.named.executions import Execution
from cellblock.service.named.limits import NamedLimits
from cellblock.service.named.moving import held
from cellblock.service.named.named_sessions import NamedSessions
from named_sessions import OPTIONS, submit
from processes import eventually


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
    await eventually(lambda: named.session is not None and named.session.cells.current is not None)
    assert await running.cancel(named.current)
    assert (await running.wait()).status == "interrupted"
    assert [(await one.wait()).return_value for one in waiting[1:]] == ["1", "1"]
    await sessions.close()


@pytest.mark.parametrize(
    ("code", "stdin", "said"),
    [
        ("!echo done", False, r"; its code waits for a decision \('cellblock approvals pending' lists it\)$"),
        ("input('name? ')", True, r"; its code waits for an answer to input\(\)$"),
        ("while True: pass", False, r"\(max_waiting\)$"),
    ],
)
async def test_a_session_whose_code_waits_for_somebody_says_so(
    zygote_host: Host, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, stdin: bool, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    sessions = NamedSessions(zygote_host, limits=NamedLimits(waiting=1))
    named = await sessions.create("one", {**OPTIONS, "approve_shell_cmds": True})
    running = submit(sessions, named, code, live=True, stdin=stdin)
    assert isinstance(running, Execution)
    asks = sessions.approvals.waiting if "echo" in code else lambda: running.stdin.asks
    await eventually((lambda: running.record.state == "running") if "while" in code else asks)
    waiting = submit(sessions, named, "1")
    with pytest.raises(BusyError, match=said):
        submit(sessions, named, "1")
    with pytest.raises(BusyError, match="it runs code" + said.removeprefix(r"\(max_waiting\)")):
        async with held(named, 0.1, sessions.executions.waits_for):
            raise AssertionError
    assert await running.cancel(named.current)
    assert (await waiting.wait()).return_value == "1"
    await sessions.close()


async def test_sessions_that_use_much_memory_leave_no_room_for_others(native_host: Host, tmp_path: Path) -> None:
    sessions = NamedSessions(native_host, limits=NamedLimits(memory=80 << 20))
    options = {"working_dir": str(tmp_path), "images_dir": str(tmp_path)}
    try:
        named = await sessions.create("large", options)
        await submit(sessions, named, "large = b'x' * (100 << 20)").wait()
        await eventually(lambda: sessions.about()["memory"] > 80 << 20)
        with pytest.raises(BusyError, match="all sessions use"):
            await sessions.create("other", options)
        await sessions.restart("large")
        await sessions.create("other", options)
    finally:
        await sessions.close()
