"""What waits for a decision, and what was allowed for the rest of a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cellblock import Approvals, Host
from cellblock.service.named import named_checkpoints
from cellblock.service.named.ended_executions import EndedExecution
from cellblock.service.named.executions import Execution
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.named.session import NamedSession
from named_sessions import OPTIONS, after_a_kill, submit
from processes import eventually

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


@pytest.mark.slow
async def test_what_was_allowed_says_so_if_it_is_not_kept_whole(sessions: NamedSessions) -> None:
    named = await sessions.create("one", APPROVED)
    execution = submit(sessions, named, f"get_ipython().getoutput('echo {'x' * 2000}')", live=True)
    await eventually(lambda: sessions.approvals.waiting())
    (waits,) = sessions.approvals.waiting()
    await sessions.approvals.decide((waits.id,), allow=True, always="call")
    await execution.wait()
    (permission,) = sessions.approvals.allowed()
    kept, _, said = permission.text.partition("… [")
    assert kept == waits.text[:1000]
    assert said.startswith(f"{len(waits.text) - 1000:,} more characters: 'cellblock approvals list --json'")


async def test_branches_share_no_decision_and_no_permission(sessions: NamedSessions) -> None:
    """Nor does what a branch waits for end with the session that it comes from."""

    async def asked(named: NamedSession, always: str = "") -> Execution | EndedExecution:
        """Run what asks; if it is to be allowed for good, do that, and wait for its end."""
        execution = submit(sessions, named, ASKS, live=True)
        session = named.record.kernel_id
        await eventually(lambda: sessions.approvals.waiting(session))
        (waits,) = sessions.approvals.waiting(session)
        assert waits.session_name == named.record.name
        if always:
            assert await sessions.approvals.decide((waits.id,), allow=True, always=always) == [waits.id]
            assert "done" in (await execution.wait()).output
        return execution

    parent = await sessions.create("parent", APPROVED)
    await asked(parent, "tool")
    await named_checkpoints.fork(sessions, "parent", ("first", "second", "third"), files="shared")
    first, second, third = (sessions.find(name) for name in ("first", "second", "third"))
    assert [one.session_name for one in sessions.approvals.allowed()] == ["parent"]
    await asked(first, "tool")  # what was allowed for the parent is not allowed for its branches
    waits = await asked(second)  # nor for one what was allowed for another
    assert [one.session_name for one in sessions.approvals.allowed()] == ["parent", "first"]
    await named_checkpoints.adopt(sessions, "parent", "first")
    assert [one.session_name for one in sessions.approvals.allowed()] == ["parent"]
    assert "done" in (await submit(sessions, parent, ASKS, live=True).wait()).output  # it keeps what it was allowed
    await sessions.destroy("parent")
    assert sessions.approvals.allowed() == []
    (left,) = sessions.approvals.waiting()
    assert (left.session_name, left.state) == ("second", "pending")
    await sessions.approvals.decide((left.id,), allow=True)
    assert "done" in (await waits.wait()).output
    await asked(third, "call")
    again = await sessions.create("parent", APPROVED)
    assert sessions.approvals.allowed(again.record.kernel_id) == []
    await asked(again, "call")


@pytest.mark.slow
async def test_a_permission_of_an_older_version_is_dropped(sessions: NamedSessions, zygote_host: Host, state: Path) -> None:
    """It does not say which server it is for."""
    named = await sessions.create("one", APPROVED)
    first = submit(sessions, named, ASKS, live=True)
    await eventually(lambda: sessions.approvals.waiting())
    await sessions.approvals.decide((sessions.approvals.waiting()[0].id,), allow=True, always="tool")
    await first.wait()
    (permission,) = sessions.approvals.allowed()
    registry = sessions.approvals._registry
    registry.allow(permission, ("shell", "shell", "shell", ""))  # under the same id
    later = await after_a_kill(sessions, zygote_host, state)
    assert later.approvals.allowed() == []
    again = submit(later, await later.create("one"), ASKS, live=True)
    await eventually(lambda: later.approvals.waiting())
    assert later.approvals._registry.permissions() == []
    await later.approvals.decide((later.approvals.waiting()[0].id,), allow=False)
    await again.wait()
    await later.close()


@pytest.mark.slow
async def test_an_answer_that_comes_too_late_is_told_why(sessions: NamedSessions) -> None:
    named = await sessions.create("one", APPROVED)
    execution = submit(sessions, named, ASKS, live=True)
    await eventually(lambda: sessions.approvals.waiting())
    (asked,) = sessions.approvals.waiting()
    assert sessions.approvals.why_ended(asked.id) == ""
    await named.session.interrupt()
    await execution.wait()
    for allow in (True, False):
        assert await sessions.approvals.decide((asked.id,), allow=allow) == []
    assert sessions.approvals.why_ended(asked.id).startswith(f"the request {asked.id} was withdrawn already")
    assert sessions.approvals.why_ended("other") == ""


@pytest.mark.slow
async def test_the_same_decision_once_more_changes_nothing(sessions: NamedSessions) -> None:
    approvals = sessions.approvals
    named = await sessions.create("one", APPROVED)
    once: dict[str, Any] = {"allow": True}
    always, tool, no = {**once, "always": "call"}, {**once, "always": "tool"}, {"allow": False}
    for first, again, others in (
        (once, [once], [no, always]),
        ({**no, "reason": "no"}, [no], [once, always]),
        (always, [always, once], [tool, no]),
    ):
        execution = submit(sessions, named, ASKS, live=True)
        await eventually(lambda: approvals.waiting())
        (asked,) = approvals.waiting()
        assert await approvals.decide((asked.id,), session="other", **first) == []
        assert await approvals.decide((asked.id,), session="one", **first) == [asked.id]
        for decision in again:
            assert await approvals.decide((asked.id,), **decision) == [asked.id]
            assert await approvals.decide((asked.id,), session="other", **decision) == []
        for decision in others:
            assert await approvals.decide((asked.id,), **decision) == []
        assert approvals.why_ended(asked.id)
        assert approvals.why_ended(asked.id, "other") == ""
        await execution.wait()
    assert [permission.scope for permission in approvals.allowed()] == ["call"]
