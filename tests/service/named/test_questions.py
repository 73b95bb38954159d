"""What MCP servers ask in the middle of calls of named sessions waits for an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import InvalidInputError
from cellblock.service.named.named_sessions import NamedSessions
from named_sessions import OPTIONS, submit
from processes import eventually
from tool_sessions import ASK, register


def options(workspace: Path, approve: str = "ask") -> dict[str, object]:
    register(workspace)
    return {**OPTIONS, "working_dir": str(workspace), "approve": approve, "approve_tool_calls": False}


async def test_a_question_waits_and_is_answered_or_refused(sessions: NamedSessions, tmp_path: Path) -> None:
    named = await sessions.create("one", options(tmp_path))
    approvals = sessions.approvals
    for answer in ({"yes": True}, None):
        execution = submit(sessions, named, ASK, live=True)
        await eventually(lambda: approvals.waiting(), 60)  # a server starts
        (asked,) = approvals.waiting(named.record.kernel_id)
        assert (asked.kind, asked.server, asked.execution) == ("question", "bad", execution.record.id)
        assert asked.text == "MCP server 'bad' asks: May I?"
        assert asked.arguments["schema"]["properties"]["yes"]["type"] == "boolean"
        with pytest.raises(InvalidInputError, match="an answer each time"):
            await approvals.decide((asked.id,), allow=True, always="tool", answer={"yes": True})
        with pytest.raises(InvalidInputError, match="not a field of that form"):
            await approvals.decide((asked.id,), allow=True, answer={"yes": "perhaps"})
        assert await approvals.decide((asked.id,), allow=answer is not None, answer=answer) == [asked.id]
        assert await approvals.decide((asked.id,), allow=answer is not None, answer=answer) == [asked.id]
        assert await approvals.decide((asked.id,), allow=answer is None) == []
        assert await approvals.decide((asked.id,), allow=True, answer={"yes": False}) == []
        assert ("accept" if answer else "decline") in (await execution.wait()).output
        assert approvals.waiting() == []
        kinds = [
            (event.kind, event.data.get("state")) async for event in execution.follow() if event.data.get("id") == asked.id
        ]
        assert kinds == [("approval", "pending"), ("decided", "accepted" if answer else "rejected")]


@pytest.mark.slow
async def test_where_everything_is_allowed_a_question_is_refused_and_the_output_says_so(
    sessions: NamedSessions, tmp_path: Path
) -> None:
    named = await sessions.create("one", options(tmp_path, "auto"))
    result = await submit(sessions, named, ASK).wait()
    assert "decline" in result.output
    assert "[cellblock] MCP server 'bad' asked for input and got no answer" in (result.text or "")
    assert sessions.approvals.waiting() == []


@pytest.mark.slow
async def test_a_question_of_a_cell_that_is_stopped_waits_no_longer(sessions: NamedSessions, tmp_path: Path) -> None:
    named = await sessions.create("one", options(tmp_path))
    execution = submit(sessions, named, ASK, live=True)
    await eventually(lambda: sessions.approvals.waiting())
    await execution.cancel(named.current)
    await eventually(lambda: not sessions.approvals.waiting())
    assert (await execution.wait()).status == "interrupted"


@pytest.mark.slow
async def test_a_question_of_a_session_that_ends_waits_no_longer(sessions: NamedSessions, tmp_path: Path) -> None:
    named = await sessions.create("one", options(tmp_path))
    execution = submit(sessions, named, ASK, live=True)
    await eventually(lambda: sessions.approvals.waiting())
    await sessions.destroy("one")
    await eventually(lambda: not sessions.approvals.waiting())
    assert execution.ended
