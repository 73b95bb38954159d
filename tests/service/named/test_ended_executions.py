"""Executions that the last process has left: what is said about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import Host, NotFoundError, NotRunError, OutcomeUnknownError
from cellblock.service.named.named_sessions import NamedSessions
from named_sessions import OPTIONS, after_a_kill, submit
from processes import eventually


async def test_what_ran_is_unknown_and_what_waited_never_ran(
    sessions: NamedSessions, zygote_host: Host, state: Path, tmp_path: Path
) -> None:
    named = await sessions.create("one", OPTIONS)
    running = submit(sessions, named, "open('begun', 'a').write('x'); import time; time.sleep(60)", key="a")
    waiting = submit(sessions, named, "open('never', 'w')", key="b")
    await eventually((tmp_path / "begun").exists)
    later = await after_a_kill(sessions, zygote_host, state)
    _, found = later.executions.find(running.record.id)
    assert found.record.state == "unknown"
    with pytest.raises(OutcomeUnknownError, match="may have run in part") as caught:
        await found.wait()
    assert caught.value.execution == running.record.id
    with pytest.raises(NotRunError, match=r"before .* began to run"):
        await later.executions.find(waiting.record.id)[1].wait()
    assert not (tmp_path / "never").exists()
    kinds = [(event.kind, event.data.get("ran")) async for event in found.follow()]
    assert kinds[-1] == ("failed", "unknown")
    # The key of what ran is taken, and that of what never ran is free: even for other code.
    named = await later.create("one")
    again = submit(later, named, "open('begun', 'a').write('x'); import time; time.sleep(60)", key="a")
    assert again.record.id == running.record.id
    with pytest.raises(NotFoundError):
        later.executions.find_key(named, "b")
    assert (await submit(later, named, "1 + 1", key="b").wait()).return_value == "2"
    assert (tmp_path / "begun").read_text() == "x"
    await later.close()
    await sessions.destroy("one")
